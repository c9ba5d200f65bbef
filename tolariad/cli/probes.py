"""Common parts of the commands that try something on a copy of the model: configuration, checkpoint, process.

Promises: this process loads no torch. A checkpoint that is in use is not removed by a live run meanwhile. Nothing of a
run is changed.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from tolariad.cli import naming, runs
from tolariad.cli.checkpoints import wanted
from tolariad.cli.errors import CommandError
from tolariad.cli.long_work import bar
from tolariad.config import load
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_DAMAGED, EXIT_USAGE
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.core.calc.settings.rules import require_task, resolved_json
from tolariad.core.calc.settings.task_defaults import GIVEN
from tolariad.forensics.words import safe_lines
from tolariad.storage import held
from tolariad.storage.manifest import FILE_NAME
from tolariad.trainer.probes.messages import Refused, Weights

if TYPE_CHECKING:
    from tolariad.core import state as st
    from tolariad.core.calc.settings.model import Settings
    from tolariad.core.state.run_state import RunState
    from tolariad.trainer.probes.messages import AnyTrial

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# A live run may remove a checkpoint between the look at its journal and the hold.
_LOOKS: Final = 3


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a trial. `entry`: the run's checkpoint; None: the model as the task builds it."""

    settings: Settings
    run: Path | None = None
    entry: st.CatalogueEntry | None = None

    @property
    def config(self) -> str:
        """The resolved configuration."""
        return resolved_json(self.settings).decode()

    @property
    def weights(self) -> Weights | None:
        """The weights for the copy."""
        if self.run is None or self.entry is None:
            return None
        return Weights(self.entry.id, str(self.run / "checkpoints" / self.entry.id), self.entry.manifest)

    @property
    def words(self) -> str:
        """Where the weights come from."""
        if self.entry is None:
            return "a new model, as the task builds it"
        return f"{self.entry.id} of {self.run}, step {self.entry.step}"


def takes_subject(function: Callable[..., int]) -> Callable[..., int]:
    """Add the argument and the options that say what is tried. The command gets the run's folder, or None."""

    @functools.wraps(function)
    def command(*, name: str | None, folder: str | None, **given: Any) -> int:
        target = runs.named(name, folder)
        return function(folder=None if target is None else runs.known_folder(target), **given)

    adds: Callable[..., Any] = command
    for add in (
        click.option(
            "--checkpoint",
            "--id",
            "checkpoint",
            metavar="ID",
            help="The run's checkpoint: an id, `best` or `last`. Default: last.",
        ),
        click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the configuration. Repeatable."
        ),
        naming.by_name_or_folder,
        click.option(
            "--task", help="A built-in task, package.module:Name, ./file.py:Name, lightning:./file.py:Module."
        ),
        click.argument("config", required=False, type=click.Path(path_type=Path)),
    ):
        adds = add(adds)
    return adds


def settings_of(
    config: Path | None, task: str | None, sets: tuple[str, ...], own: dict[str, Any] | None = None
) -> Settings:
    """Return the settings of CONFIG or --task; without both, those of a run (`own`). Raises CommandError, exit 78."""
    given = [*([f"task={task}"] if task else []), *sets]
    try:
        settings = load(config if config is not None else (own or {"tolaria": {}}), given)
        require_task(settings)
    except ConfigError as error:
        hint = "docs/configuration.md lists all keys"
        if config is not None and config.is_dir():
            hint = f"to name a run's folder: --run {config}"
        raise CommandError(EXIT_CONFIG, str(error), hint=hint, name="Config") from error
    return settings


@contextmanager
def subject(
    config: Path | None, task: str | None, folder: Path | None, sets: tuple[str, ...], checkpoint: str | None
) -> Iterator[Subject]:
    """Yield what is tried: a checkpoint of --dir, held in the block, or a new model. Raises CommandError."""
    if folder is None:
        if config is None and task is None:
            raise click.UsageError("give a configuration, --task, or a run by --run")
        if checkpoint is not None:
            raise click.UsageError("--checkpoint needs a run: name it by --run")
        yield Subject(settings=settings_of(config, task, sets))
        return
    settings = settings_for(folder, config, task, sets)
    with _held(folder, checkpoint) as entry:
        yield Subject(settings=settings, run=folder, entry=entry)


def _state(run: Path) -> RunState:
    """Return the state of a run. Raises CommandError."""
    from journal import JournalError
    from tolariad.core.state.replay import ReplayError

    try:
        return runs.folded(run / runs.JOURNAL)
    except (JournalError, ReplayError) as error:
        hint = f"`tolaria journal verify {run}` checks the whole journal"
        raise CommandError(EXIT_DAMAGED, str(error), hint=hint, name=type(error).__name__) from error


def settings_for(folder: Path, config: Path | None, task: str | None, sets: tuple[str, ...]) -> Settings:
    """Return the settings for a run's checkpoint: its own, unless others are given; its seed, unless one is set.

    Raises CommandError.
    """
    if not (folder / runs.JOURNAL).is_dir():
        hint = "`tolaria list` shows the known runs"
        raise CommandError(EXIT_USAGE, f"there is no run in {folder}", hint=hint, name="NoRun")
    state = _state(folder)
    own: dict[str, Any] = msgspec.json.decode(state.run.config) if state.run.config else {"tolaria": {}}
    if config is None and task is None and own["tolaria"].get("task") == GIVEN:
        what = "a program started this run (Tolaria.train): its model and its data are there only"
        hint = "give a CONFIG whose task builds the same model, beside --run"
        raise CommandError(EXIT_CONFIG, what, hint=hint, name="Config")
    settings = settings_of(config, task, sets, own)
    seed = state.run.rng_seed if settings.rng_seed is None else settings.rng_seed
    return msgspec.structs.replace(settings, rng_seed=seed)


@contextmanager
def _held(run: Path, checkpoint: str | None) -> Iterator[st.CatalogueEntry]:
    """Yield a committed checkpoint that no run removes in the block. Raises CommandError."""
    for look in range(_LOOKS):
        entry = wanted(_state(run).checkpoints, checkpoint, EXIT_USAGE)
        place = run / "checkpoints" / entry.id
        with held(place):
            if (place / FILE_NAME).is_file() or look + 1 == _LOOKS:
                yield entry
                return


def ask(trial: AnyTrial, kind: type[T]) -> T:
    """Try it in a process of its own and return the answer. Raises CommandError."""
    command = [sys.executable, "-m", "tolariad.trainer", "--trial"]
    # The profiler's library writes lines of its own below this level.
    environment = {"KINETO_LOG_LEVEL": "6", **os.environ}
    request = msgspec.json.encode(trial)
    with bar("building, and trying it"):
        done = subprocess.run(command, input=request, stdout=subprocess.PIPE, check=False, env=environment)
    try:
        found = msgspec.json.decode(done.stdout)
    except ValueError as error:
        what = f"the process that tried the task ended with exit code {done.returncode} and gave no result"
        raise CommandError(EXIT_CONFIG, what, hint="its output is printed above", name="Config") from error
    if "error" not in found:
        return msgspec.convert(found, kind)
    refused = msgspec.convert(found, Refused)
    if refused.traceback:
        # Not a note: a traceback is read by its indentation, so no line of it is broken.
        print(safe_lines(refused.traceback), file=sys.stderr)
    raise CommandError(done.returncode, refused.error, hint=refused.hint, name="Config")
