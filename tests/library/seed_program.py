"""A program that trains the run with seeds in its folder, and goes on with it if it was killed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.library.seeds import Gardener, given_in, train

RUN = Path("run")
train(RUN, Gardener(given=given_in(RUN)), rollback={"fast_path_enabled": False}, ema={"decay": 0.9})
