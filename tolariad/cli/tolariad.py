"""`tolariad`: train, check a configuration, create a file for a task of your own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from tolariad import run_files
from tolariad.cli import output
from tolariad.cli.errors import CommandError, run_command
from tolariad.cli.lazy import LazyGroup
from tolariad.cli.runs import JOURNAL, RUNS, by_name, folded
from tolariad.cli.wrapping import fitted_to
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_DAMAGED, EXIT_IO, ORDERLY
from tolariad.trainer.probes.messages import TakenWeights, TakeWeights

if TYPE_CHECKING:
    from tolariad.control.replies import RunStatus
    from tolariad.daemon import From
    from tolariad.daemon.request import Init

COMMANDS: Final = {
    "run": "tolariad.cli.tolariad:run",
    "check": "tolariad.cli.checking:check",
    "new-task": "tolariad.cli.checking:new_task",
    "test": "tolariad.cli.testing:test",
    "lr-find": "tolariad.cli.lr_finding:lr_find",
    "profile": "tolariad.cli.profiling:profile",
}


@click.command(cls=LazyGroup, places=COMMANDS)
@click.version_option(package_name="tolariad", prog_name="tolariad")
def tolariad() -> None:
    """Flight recorder and autopilot for PyTorch training."""


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option(
    "--task",
    help="A built-in task (digits, chars), package.module:Name, ./file.py:Name, or lightning:./file.py:Module.",
)
@click.option("--epochs", type=click.IntRange(min=1), help="Number of epochs.")
@click.option("-r", "--run", "name", metavar="RUN", help="The run: a folder, a known run's name, or a new NAME.")
@click.option("--dir", "folder", metavar="RUN", help="The run's folder [default: ./runs/NAME].")
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the configuration. Repeatable."
)
@click.option("--accept-config", is_flag=True, help="Continue the run with a configuration that differs from its own.")
@click.option("--accept-data", is_flag=True, help="Continue the run with other data than it was trained on.")
@click.option("--accept-code", is_flag=True, help="Continue the run with other code than its last steps were made by.")
@click.option("--retry", is_flag=True, help="Start a failed run again.")
@click.option("--from", "origin", metavar="RUN[@ID]", help="Start with the weights of another run's checkpoint.")
@click.option("--with-optimizer", is_flag=True, help="With --from: take the state of its optimizer too.")
@click.option("--init", metavar="WEIGHTS", help="Start with the weights in a .safetensors or .pt file.")
@click.option("--linger", is_flag=True, help="Keep answering `tolaria` after the run is complete.")
@click.option("-v", "--verbose", is_flag=True, help="On a terminal, show the whole log, with loggers and ids.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end; the progress goes to stderr.")
def run(
    *,
    as_json: bool,
    config: Path | None,
    task: str | None,
    name: str | None,
    folder: str | None,
    origin: str | None,
    with_optimizer: bool,
    init: str | None,
    **given: Any,
) -> int:
    """Train in the foreground, or continue a run.

    If the run's folder already holds a journal, the run continues from it.

    Exit codes: 0: completed, or stopped by an order. 130, 143: ended before its end by ^C, or by SIGTERM or another
    signal. 2: wrong usage. 65: journal or checkpoint damaged, or written by a newer version. 70: the run failed. 74:
    input or output failed. 75: another daemon holds the run, try again. 78: wrong configuration.
    """
    from tolariad.cli.progress import Progress
    from tolariad.daemon import RunRequest, StartRefused
    from tolariad.daemon import run as run_daemon
    from tolariad.telemetry.journald import is_journal

    # Under systemd the log has what matters, with fields; a line of progress every few seconds would bury it.
    progress = Progress(sys.stderr if as_json else sys.stdout, is_shown=not is_journal(1, os.environ))
    run_dir = _folder_of(name, folder) or default_folder(config, task)
    begin_from = _begin_from(origin, with_optimizer)
    if init is not None and begin_from is not None:
        raise click.UsageError("--init and --from both give the weights to start with: give only one of them")
    request = RunRequest(
        run_dir=run_dir,
        config=config,
        task=task,
        begin_from=begin_from,
        init=_init(init, run_dir) if init is not None else None,
        progress=progress,
        **given,
    )
    try:
        code = run_daemon(request)
    except StartRefused as refused:
        raise CommandError(refused.code, refused.why, hint=refused.hint, name="StartRefused") from refused
    except OSError as error:
        raise CommandError(EXIT_IO, f"input or output failed: {error}", name=type(error).__name__) from error
    finally:
        progress.end()
    if progress.last is None:
        return code
    try:
        # ^C ends the summary, which reads the whole journal. It does not change how the run ended.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return _summarized(progress.last, request.run_dir, code, as_json=as_json)
    except KeyboardInterrupt:
        return code


def _summarized(last: RunStatus, run_dir: Path, code: int, *, as_json: bool) -> int:
    """Print the summary of a run that has ended. Return the exit code: another one if the journal is damaged."""
    from tolariad.cli.progress import closing_status, closing_words

    if as_json:
        told, clean = closing_status(last, run_dir)
        code = code if clean or code not in ORDERLY else EXIT_DAMAGED
        output.put_json({**told, "exit_code": code})
        return code
    lines, clean = closing_words(last, run_dir)
    stream = sys.stdout if code in ORDERLY else sys.stderr
    for line in lines:
        for part in (one for whole in line.split("\n") for one in fitted_to(stream, whole)):
            print(output.shown(part), file=stream)
    return code if clean or code not in ORDERLY else EXIT_DAMAGED


def _folder_of(name: str | None, folder: str | None) -> Path | None:
    """Return the folder that -r or --dir names, here or before the command; None without them.

    --dir is a folder, -r a run that is known or a folder; a new name is in ./runs. Raises UsageError.
    """
    root = click.get_current_context().find_root().params
    if root.get("socket"):
        raise click.UsageError("run takes the run's name or folder: --run RUN or --dir RUN")
    if name is None and folder is None:
        name, folder = root.get("name"), root.get("folder")
    if name is not None and folder is not None and name != folder:
        raise click.UsageError(f"-r {name}, --dir {folder}: each names the run, so give only one of them")
    given = folder if folder is not None else name
    if given is None:
        return None
    if not given.strip():
        raise click.UsageError("the run has an empty name: give a name or a folder")
    if folder is not None or "/" in given:
        return Path(given)
    try:
        return by_name(given).folder or RUNS / given
    except CommandError:
        return RUNS / given


def default_folder(config: Path | None, task: str | None) -> Path:
    """Return `./runs/NAME`, the name from the configuration's file or the task. Raises CommandError without either."""
    if config is not None:
        return RUNS / config.stem
    if task is not None:
        return RUNS / (task.rpartition(":")[2] or task)
    hint = "`tolariad run --task digits` trains a built-in task; `tolariad new-task PATH` creates one of your own"
    raise CommandError(2, "nothing to run: give a configuration, --task, or an existing run by --run", hint=hint)


def _begin_from(origin: str | None, with_optimizer: bool) -> From | None:
    """Split `RUN[@ID]` into folder and id. If the whole text is the name of a folder, it has no id."""
    from tolariad.daemon import From

    if origin is None:
        if with_optimizer:
            raise click.UsageError("--with-optimizer needs --from")
        return None
    run, at, id_ = origin.rpartition("@")
    if not at or Path(origin).is_dir():
        run, id_ = origin, ""
    folder = Path(run) if Path(run).is_dir() else by_name(run).folder
    if folder is None or not (folder / JOURNAL).is_dir():
        hint = "`tolaria list` shows the known runs; give the folder of any other run"
        raise CommandError(2, f"--from: there is no run {run}", hint=hint, name="NoRun")
    return From(folder=folder, id=id_, with_optimizer=with_optimizer)


def _init(file: str, run_dir: Path) -> Init:
    """Copy the weights into a new run's folder, by a process that has torch. Raises CommandError."""
    from tolariad.cli import probes
    from tolariad.daemon.request import Init

    named = str(Path(file).absolute())
    if (run_dir / JOURNAL).is_dir() and folded(run_dir / JOURNAL).progress.step:
        return Init(file=named)  # the run has its copy, or is refused
    run_files.make_run_folder(run_dir)
    trial = TakeWeights(config="", file=named, output=str((run_dir / m.INIT_NAME).absolute()))
    try:
        return Init(file=named, hash=probes.ask(trial, TakenWeights).hash)
    except CommandError:
        with contextlib.suppress(OSError):
            run_dir.rmdir()  # unless it holds something: a refused start leaves no run
        raise


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `arguments`, or the command line's if None, and exit the process with the exit code."""
    run_command(tolariad, "tolariad", arguments)
