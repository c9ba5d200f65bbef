"""Facts about earlier trainers of a run that the start of the next one needs: process, threads, code."""

from __future__ import annotations

from tolariad.daemon.opening import OpenRun, earlier_threads
from tolariad.supervisor import FormerTrainer, TrainerCode


def former_trainer(run: OpenRun) -> FormerTrainer | None:
    """Return the process of the trainer that the journal knows, if there was one."""
    known = run.former
    return FormerTrainer(known.pid, known.start_ticks, known.boot_id) if known.pid else None


def trainer_code(run: OpenRun, ring: int) -> TrainerCode | None:
    """Return the code for trainer threads if `trainer: thread` is set, else None. Only then is torch imported."""
    if run.resolved.settings.trainer == "process":
        return None
    from tolariad.daemon import threaded

    return threaded.trainer_code(run, ring)


def threads_argument(run: OpenRun) -> tuple[str, ...]:
    """Return the argument for as many threads as torch had before; () if that is not known."""
    threads = earlier_threads(run)
    return ("--torch-threads", str(threads)) if threads else ()
