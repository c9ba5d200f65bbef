"""Make past steps of a run again, in a copy of the run that ends there. Common to `checkout` and `reexecute`.

Promises: nothing in the run's folder is written, and its checkpoint is not removed meanwhile. The copy goes on nowhere:
it sends nothing, serves no metrics, and is removed in the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from journal.copying import copy_until
from journal.errors import JournalError
from journal.reader import Reader
from tolariad import run_files
from tolariad.cli import output
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.long_work import bar
from tolariad.cli.runs import Target
from tolariad.cli.steps_named import NamedStep
from tolariad.control.where import socket_of
from tolariad.core.calc.text.phrases import last_line
from tolariad.forensics.again import OUTSIDE, NotAgain, Outcome, Plan, outcome_of, plan_for
from tolariad.storage.copy import copy_checkpoint
from tolariad.storage.differing import differing_tensors
from tolariad.storage.remove import held
from tolariad.storage.verify import CheckpointUnusable, verify

_LOOK_S: Final = 0.2
# The path of a socket ends at 107 bytes, of which the names below this folder take some 60.
_SHORT: Final = 40
_CONFIG: Final = "config.resolved.json"


def planned(journal: Path, step: NamedStep, *, begin_at_most: int | None = None) -> Plan:
    """Return how the step is reached, from the newest checkpoint that verifies. Raises CommandError."""
    while True:
        try:
            with Reader(journal) as reader:
                plan = plan_for(reader, journal.parent, step.number, step.branch, begin_at_most=begin_at_most)
        except NotAgain as error:
            raise CommandError(Exit.NO, str(error), name="NotAgain") from error
        place = journal.parent / "checkpoints" / plan.checkpoint
        try:
            with held(place):
                verify(place, plan.manifest)
        except CheckpointUnusable as error:
            output.note(f"checkpoint {plan.checkpoint} is damaged ({error}); an earlier one is taken")
            begin_at_most = plan.from_step - 1
        else:
            return plan


def say_cost(plan: Plan) -> None:
    """Say what it will cost, before it begins."""
    steps = output.counted(plan.steps, "step")
    output.note(
        f"from checkpoint {plan.checkpoint} of step {plan.from_step}, {steps} are made again, which took the run "
        f"{output.duration(plan.seconds)}"
    )


@contextmanager
def copied(journal: Path, plan: Plan, within: Path | None = None) -> Iterator[Path]:
    """Yield the folder of a copy that ends at the step, in a new folder under `within`; remove it at the end."""
    with tempfile.TemporaryDirectory(prefix=".tolaria-again-", dir=within) as made:
        folder = Path(made) / "run"
        run_files.make_run_folder(folder)
        run_files.replace_file(folder, _CONFIG, plan.config.encode())
        run_files.make_folder(folder, "checkpoints")
        # The checkpoint first: a live run may remove it at any moment.
        place = Path("checkpoints") / plan.checkpoint
        copy_checkpoint(journal.parent / place, plan.manifest, folder / place)
        with Reader(journal) as reader, bar("copying the journal", 0, plan.seq) as at:
            copy_until(reader, plan.seq, folder / "journal", more=plan.more, capture=plan.capture, progress=at)
        yield folder


def _reached(folder: Path) -> int:
    """Return the step that the copy's trainer has come to, for the bar; 0 if its daemon does not say."""
    if not sys.stderr.isatty():
        return 0
    try:
        return Target(folder, socket_of(folder)).ask("Status", _no_status).get("heartbeat_step") or 0
    except Exception:  # noqa: BLE001 - the bar is no part of the answer
        return 0


def _no_status(_: Path) -> msgspec.Struct:
    raise LookupError


def differing(journal: Path, plan: Plan, folder: Path, found: Outcome) -> tuple[str, ...] | None:
    """Return which tensors differ from the run's own checkpoint of the step; None if it has none any more."""
    if plan.recorded is None or not found.checkpoint:
        return None
    place = journal.parent / "checkpoints" / plan.recorded.id
    try:
        with held(place):
            made = folder / "checkpoints" / found.checkpoint
            return tuple(differing_tensors(place, plan.recorded.manifest, made, found.manifest))
    except CheckpointUnusable:
        return None


def _short_folder() -> str:
    given = tempfile.gettempdir()
    return given if len(given) <= _SHORT else "/tmp"  # noqa: S108 - the folder made in it has a name of its own


def trained(folder: Path, plan: Plan) -> Outcome:
    """Let a daemon train the copy to its end, and return what came out. Raises CommandError if it did not begin."""
    code = "from tolariad.cli.tolariad import main; main()"
    sets = [part for one in OUTSIDE for part in ("--set", one)]
    command = [sys.executable, "-c", code, "run", "--dir", str(folder), *sets]
    with (
        tempfile.TemporaryFile() as sink,
        bar("making steps again", plan.from_step, plan.step) as at,
        # A folder of its own, so that nobody finds the copy as a live run; and short, as the path of a socket must be.
        tempfile.TemporaryDirectory(prefix="tolaria-", dir=_short_folder()) as runtime,
    ):
        environment = {**os.environ, "XDG_RUNTIME_DIR": runtime}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment)
        try:
            while process.poll() is None:
                time.sleep(_LOOK_S)
                at(_reached(folder))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        sink.seek(0)
        printed = sink.read().decode("utf-8", "replace")
    try:
        found = outcome_of(folder / "journal", plan.seq + len(plan.more))
    except JournalError as error:
        raise CommandError(Exit.NO, f"the copy's journal cannot be read: {error}", name="NotAgain") from error
    if not found.checkpoint and not found.failed and found.difference is None:
        said = last_line(printed.strip()) or f"exit code {process.returncode}"
        raise CommandError(Exit.NO, f"the steps could not be made again: {said}", name="NotAgain")
    return found
