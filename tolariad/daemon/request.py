"""What `tolariad run` asks of the daemon, and how the daemon says no before anything was started.

It must not know: command lines.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tolariad.control.status import RunStatus
from tolariad.core.settings import Settings
from tolariad.supervisor import Timeouts

EXIT_USAGE: Final = 2
EXIT_DAMAGED: Final = 65
EXIT_FAILED: Final = 70
EXIT_IO: Final = 74
EXIT_TRY_AGAIN: Final = 75
EXIT_CONFIG: Final = 78

Progress = Callable[[RunStatus], None]


class From(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: a run's folder; a checkpoint of it, or the newest; with the optimizer's state or without."""

    folder: Path
    id: str = ""
    with_optimizer: bool = False


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a run.

    `config` is a YAML file; `task` and `epochs` stand over it, `sets` (`key=value`) over those. With none of them an
    existing run goes on under the configuration it had. `settings`, read already, stand over all of them. `progress` is called some times a second, in a thread of its own,
    with the run as of the last durable event. The last four are for tests: the trainer's command, waiting times.
    """

    run_dir: Path
    config: Path | None = None
    task: str | None = None
    epochs: int | None = None
    sets: tuple[str, ...] = ()
    settings: Settings | None = None
    accept_config: bool = False
    retry: bool = False
    linger: bool = False
    begin_from: From | None = None
    progress: Progress | None = None
    trainer_command: tuple[str, ...] | None = None
    timeouts: Timeouts = Timeouts()
    idle_exit_s: float = 60.0
    stop_budget_s: float | None = None


class StartRefused(Exception):
    """Nothing was started and nothing was changed; `code` is the exit code that says so."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
