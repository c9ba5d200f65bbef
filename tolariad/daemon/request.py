"""The request of `tolariad run` to the daemon, and the error that refuses a start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tolariad.control.replies import RunStatus
from tolariad.core.calc.settings.model import Settings
from tolariad.refusal import StartRefused
from tolariad.supervisor import Timeouts

__all__ = ["FolderLost", "From", "Progress", "RunRequest", "StartRefused", "refusing"]

Progress = Callable[[RunStatus], None]


class From(msgspec.Struct, frozen=True, kw_only=True):
    """`--from`: a run's folder, a checkpoint id (empty: the newest), and whether to take the optimizer's state."""

    folder: Path
    id: str = ""
    with_optimizer: bool = False


class Init(msgspec.Struct, frozen=True, kw_only=True):
    """`--init`: a file of weights, as it was named; the hash of its copy in the run's folder, "" if none was made."""

    file: str
    hash: str = ""


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a run.

    `config` is a YAML file. `task` and `epochs` override it, and `sets` (`key=value`) override those. If none is given,
    an existing run keeps its configuration. `settings` overrides everything. `verbose`: on a terminal, show the whole
    log. `progress` is called some times a second, in a thread of its own, with the state after the last durable event.
    The last four fields are for tests.
    """

    run_dir: Path
    config: Path | None = None
    task: str | None = None
    epochs: int | None = None
    sets: tuple[str, ...] = ()
    settings: Settings | None = None
    accept_config: bool = False
    accept_data: bool = False
    accept_code: bool = False
    retry: bool = False
    linger: bool = False
    verbose: bool = False
    begin_from: From | None = None
    init: Init | None = None
    progress: Progress | None = None
    trainer_command: tuple[str, ...] | None = None
    timeouts: Timeouts = Timeouts()
    idle_exit_s: float = 60.0
    stop_budget_s: float | None = None


class FolderLost(StartRefused):
    """The run's folder was deleted or moved while the run was live. Training was stopped."""


@contextmanager
def refusing(code: int, what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn one of `errors` in the `with` block into StartRefused. Its text follows `what`, which may be empty."""
    try:
        yield
    except errors as error:
        raise StartRefused(code, f"{what}: {error}" if what else str(error)) from error
