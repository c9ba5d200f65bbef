"""A program that trains the run with seeds in its folder, and goes on with it if it was killed.

Its argument names one of `KINDS`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.library.seed_kinds import KINDS, SPACED
from tests.library.seeds import Steadfast, hashed_at_once, train

kind = KINDS[sys.argv[1]]
hashed_at_once()
train(Path("run"), Steadfast(SPACED, back=kind.back), **kind.options)
