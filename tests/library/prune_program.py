"""A program that trains the run with masks and a compaction in its folder, and goes on with it if it was killed.

With the argument `back` it orders a rollback to before the compaction, once.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.library.pruning import FULL, Prunes, given_in, train, wait_for_checkpoint
from tests.recorded import events_of, of
from tolariad.core import messages as m

RUN = Path("run")
task = Prunes(given=given_in(RUN))
if "back" in sys.argv:
    gone_back = of(events_of(RUN), m.RollbackBegun) if (RUN / "journal").exists() else []

    def back(step):
        wait_for_checkpoint(task)
        if step == 28 and not gone_back:
            gone_back.append(step)
            assert task.run.rollback(3)

    task.also = back
train(RUN, task, **FULL, ema={"decay": 0.9})
assert "torch_pruning" not in sys.modules, "masks and compactions need no graph of the model"
