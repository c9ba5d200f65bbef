"""The code of a trainer's thread in a daemon with `trainer: thread`: the same that a trainer process runs.

Only such a daemon imports this module, because it imports torch.
"""

from __future__ import annotations

import os
import time
from typing import Final

from tolariad.channel import Activity, TrainerEnd
from tolariad.daemon.children import kept_from_children
from tolariad.daemon.opening import OpenRun, earlier_threads
from tolariad.supervisor.threaded import TrainerCode, TrainerExit
from tolariad.trainer.loop import Trainer
from tolariad.trainer.process.lifecycle import End, built, see_through
from tolariad.trainer.process.lifelines import lock_run

_CODES: Final = {End.TOLD: 0, End.REFUSED: 78, End.RAISED: 1}


def trainer_code(run: OpenRun, ring: int) -> TrainerCode:
    """Return the code that every trainer thread of this run executes. `ring`: descriptor of the snapshot arena."""

    def train(channel: TrainerEnd, descriptors: tuple[int, ...]) -> TrainerExit:
        def beat() -> None:
            channel.page.beat(0, time.monotonic_ns(), Activity.IMPORT)

        def build() -> Trainer:
            config, threads = run.resolved.text.encode(), earlier_threads(run)
            return built(channel, run.run_dir, run.run_id.hex(), config=config, threads=threads, ring=ring)

        beat()
        lock = lock_run(run.run_dir, beat)
        try:
            with kept_from_children(run.run_dir, lock, ring, *descriptors):
                ending = see_through(build, channel)
        finally:
            os.close(lock)
        return TrainerExit(_CODES[ending.end], ending.traceback)

    return train
