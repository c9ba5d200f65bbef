"""A program that trains the run with seeds in its folder, and goes on with it if it was killed.

Its argument names one of `KINDS`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.library.seed_kinds import KINDS
from tests.library.seeds import Steadfast, train

kind = KINDS[sys.argv[1]]
train(Path("run"), Steadfast(also=kind.also, back=kind.back), **kind.options)
