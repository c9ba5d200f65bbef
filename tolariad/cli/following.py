"""`tolaria follow`: copy a run's numbers and words to TensorBoard, MLflow or W&B, while it runs or afterwards."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tolariad import lifelines
from tolariad.boot import is_locked
from tolariad.cli import naming, output
from tolariad.cli.errors import CommandError, Exit, run_command
from tolariad.cli.runs import JOURNAL
from tolariad.followers.outputs import OUTPUTS, OutputName

if TYPE_CHECKING:
    from tolariad.followers.following import Progress as FollowProgress

F = TypeVar("F", bound=Callable[..., Any])

# How long a follower may take after the daemon that started it has ended: an upload that hangs is given up.
_LAST_S: Final = 60.0
# A tenth of the share of an ordinary process, where both want the same processor.
_NICE: Final = 10


def _options(function: F) -> F:
    """Add the options of a follower."""
    uri = "The log folder of TensorBoard, the address of MLflow's or W&B's server, or `offline` for W&B."
    project = "MLflow's experiment, W&B's project, or a folder for TensorBoard."
    function = click.option("--project", default="", help=project)(function)
    function = click.option("--uri", default="", help=uri)(function)
    where = "Where the numbers go."
    return click.option("--to", required=True, type=click.Choice(OUTPUTS), help=where)(function)


@click.command()
@naming.argument
@_options
@click.option("--once", is_flag=True, help="Copy what there is, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end: how far the copy has come.")
@naming.takes_journal
def follow(journal: Path, *, once: bool, as_json: bool, **options: Any) -> int:
    """Copy the numbers of RUN to TensorBoard, MLflow or W&B, until the run ends.

    It begins where the last one stopped, also after a kill. Each step is written once. What a rollback gave up stays,
    and the steps after it go to a folder or run of their own.
    """
    # None: nobody knows whether it is recorded.
    ended = _follow(journal, lambda: once or is_locked(journal) is not True, time.sleep, **options)
    if as_json:
        output.put_json({"to": options["to"], "step": ended.step, "seq": ended.seq})
    return Exit.DONE


@click.command()
@_options
@naming.takes_journal
def follow_beside(journal: Path, **options: Any) -> int:
    """Do the same for the daemon that has started this process, until it closes stdin."""
    ending = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(ending,), daemon=True).start()
    _follow(journal, ending.is_set, ending.wait, **options)
    return Exit.DONE


def _follow(
    journal: Path,
    over: Callable[[], bool],
    sleep: Callable[[float], object],
    *,
    to: OutputName,
    uri: str,
    project: str,
) -> FollowProgress:
    from tolariad.followers.following import follow as followed
    from tolariad.followers.outputs import opening

    be_modest()
    run_dir = journal.parent if journal.name == JOURNAL else journal
    output_of = opening(to, uri, project, run_dir)
    try:
        ended = followed(
            journal, output_of, over=over, told=lambda words: output.note(f"writing to {words}"), sleep=sleep
        )
    except Exception as error:
        raise _explained(error, to) from error
    output.note(f"{to} holds the run up to step {ended.step} (event {ended.seq})")
    return ended


def _explained(error: Exception, to: str) -> Exception:
    """Return an error of the output with its name in front; errors of the journal are themselves."""
    name = type(error).__name__
    if name in ("FollowRefused", "PlaceTaken"):
        return CommandError(Exit.REFUSED, str(error), name=name)
    if type(error).__module__.partition(".")[0] in ("mlflow", "wandb", "requests", "urllib3", "sqlalchemy"):
        hint = "give the same command again: it goes on where it was"
        return CommandError(Exit.NO, f"{to} failed: {name}: {error}", hint=hint, name=name)
    return error


def _wait_for_the_end(ending: threading.Event) -> None:
    """Wait until the daemon closes its end of stdin. It does so when the run has ended, or when it dies."""
    while os.read(0, 4096):
        continue
    ending.set()
    time.sleep(_LAST_S)
    output.note(f"the run ended {_LAST_S:.0f} s ago, and the copy is not done: `tolaria follow` copies the rest")
    os._exit(1)


def be_modest() -> None:
    """Leave the processors, and memory that runs out, to the training."""
    lifelines.offer_as_victim(lifelines.HELPER_SCORE)
    # Not the idle class: on a machine that is busy all the time the follower would never get to its first step.
    with contextlib.suppress(OSError):
        os.nice(_NICE)


if __name__ == "__main__":
    run_command(follow_beside, "tolaria follow", sys.argv[1:])
