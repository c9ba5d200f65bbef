"""The commands that give an order to a live run: pause, resume, stop, checkpoint, note.

Each prints the sequence number of its event. It then waits until the order is done or refused; with `--no-wait` only
until the event is durable.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import click

from tolariad.cli import confirming, output, runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.control.client import NotReachable
from tolariad.core.bounds import ID_CHARACTERS_MAX, NOTE_CHARACTERS_MAX, text_refusal
from tolariad.forensics.words import safe

_METHOD: Final = "io.esper.tolaria."
_COLUMNS: Final = 80


def at_most(characters: int) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a check for a text that is sent: valid Unicode, and not longer than the daemon accepts."""

    def check(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
        wrong = text_refusal(text, characters, f"the {parameter.human_readable_name}") if text is not None else None
        if wrong is not None:
            raise click.BadParameter(wrong)
        return text

    return check


def options(function: runs.F) -> runs.F:
    """Add the options that every order has."""
    for option in (
        click.option(
            "--json", "as_json", is_flag=True, help="Print JSON lines: the sequence number, then the outcome."
        ),
        click.option("--no-wait", is_flag=True, help="Do not wait for the outcome; return once the order is on disk."),
        click.option(
            "--id",
            "id_",
            callback=at_most(ID_CHARACTERS_MAX),
            help="An id of your choice; a repeat with the same id is not carried out twice.",
        ),
        click.option("--reason", callback=at_most(NOTE_CHARACTERS_MAX), help="The reason, recorded in the journal."),
    ):
        function = option(function)
    return runs.options(function)


def order(context: click.Context, method: str, given: dict[str, Any], **parameters: Any) -> int:
    """Send one order, wait for its outcome unless `no_wait` is given, print it and return the exit code."""
    target = runs.find(context, given["name"] or given.get("run"), given["folder"], given["socket"])
    wanted = {"id": given["id_"], "reason": given["reason"], **parameters}
    parameters = {key: value for key, value in wanted.items() if value is not None}
    show = output.put_json if given["as_json"] else _put_words
    with target.connect(timeout_s=60.0) as client:
        if given["no_wait"]:
            show(_told(method, client.call(_METHOD + method, parameters)))
            return Exit.DONE
        outcome: dict[str, Any] = {}
        seq = 0
        try:
            for reply in client.stream(_METHOD + method, parameters):
                seq, outcome = reply["seq"], reply.get("outcome") or {}
                show(_told(method, reply))
        except NotReachable:
            if not seq:
                raise
            # The daemon has ended. After a stop, that is the success.
            outcome = {"state": "done" if method == "Stop" else "ended"}
    return _code(outcome, method, seq)


def _told(method: str, reply: dict[str, Any]) -> dict[str, Any]:
    return {"method": method, "seq": reply["seq"], "outcome": reply.get("outcome")}


def _put_words(told: dict[str, Any]) -> None:
    outcome, said = told["outcome"], _said(told["method"])
    if outcome is None:
        print(f"{said}: recorded as event {told['seq']}", flush=True)
        return
    by = f" by {outcome['event']}, event {outcome['seq']}" if outcome.get("event") else ""
    why = f": {safe(outcome['why'])}" if outcome.get("why") else ""
    at = f", from step {outcome['step']} on" if outcome.get("step") is not None else ""
    words = f"{said}: {outcome['state']}{by}{at}{why}"
    # A file is searched by line; only a terminal has an edge.
    print(fill(words, _COLUMNS, subsequent_indent="  ") if sys.stdout.isatty() else words, flush=True)


def _said(method: str) -> str:
    """What a method is called on the command line: LrSet is `lr set`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", method).lower()


def _code(outcome: dict[str, Any], method: str, seq: int) -> int:
    if outcome.get("state") == "done":
        return Exit.DONE
    what = f"the {_said(method)} recorded as event {seq} was not carried out ({outcome.get('state', 'no outcome')})"
    raise CommandError(Exit.NO, what, hint=f"`tolaria why RUN seq:{seq}` shows what followed", name="NotDone")


def takes_run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument RUN and the options of an order."""
    return click.argument("run", required=False)(options(click.pass_context(function)))


@click.command()
@takes_run
def pause(context: click.Context, **given: Any) -> int:
    """Pause a run at its next step boundary.

    The trainer stays alive and keeps its memory. `tolaria resume` continues the run.
    """
    return order(context, "Pause", given)


@click.command()
@takes_run
@click.option("--after-gap", is_flag=True, help="Resume although a repair lost acknowledged events.")
def resume(context: click.Context, after_gap: bool, **given: Any) -> int:
    """Continue a paused or frozen run, or cancel a stop."""
    return order(context, "Resume", given, after_gap=after_gap or None)


@click.command()
@takes_run
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="End with epoch N.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="End with step N, within an epoch or not.")
def extend(context: click.Context, epochs: int | None, steps: int | None, **given: Any) -> int:
    """Let the training end later, or earlier, than configured; N counts from the beginning of the run.

    The new end holds after a restart too. Learning rates keep the curves that they were computed with.
    """
    if (epochs is None) == (steps is None):
        raise click.UsageError("give one of --epochs and --steps")
    try:
        return order(context, "Extend", given, epochs=epochs, steps=steps)
    except NotReachable:
        _refuse_complete(runs.find(context, given["name"] or given["run"], given["folder"], given["socket"]).folder)
        raise


def _refuse_complete(folder: Path | None) -> None:
    """Raise CommandError if the journal says that the run is complete: its daemon has ended and will not answer."""
    if folder is None or not (folder / runs.JOURNAL).is_dir():
        return
    state = runs.folded(folder / runs.JOURNAL)
    if state.run.phase.value == "completed":
        what = f"the run is complete: {state.progress.epoch_finished} epochs, {state.progress.step} steps"
        hint = f"`tolariad run --dir {folder} --epochs N` with more epochs goes on"
        raise CommandError(Exit.REFUSED, what, hint=hint, name="WrongPhase")


@click.command()
@takes_run
def checkpoint(context: click.Context, **given: Any) -> int:
    """Take a checkpoint at the next step boundary."""
    return order(context, "Checkpoint", given)


@click.command()
@takes_run
@click.option("--now", is_flag=True, help="Stop without a checkpoint; the steps since the last one are re-run later.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def stop(context: click.Context, now: bool, yes: bool, **given: Any) -> int:
    """Take a checkpoint at the next step boundary and stop.

    The daemon and the trainer end. `tolariad run --dir RUN` continues the run.
    """
    if now and not yes:
        confirm("Stop without a checkpoint? The next start must run the steps since the last checkpoint again.")
    return order(context, "Stop", given, mode="now" if now else None)


@click.command()
@click.argument("text", callback=at_most(NOTE_CHARACTERS_MAX))
@options
@click.pass_context
def note(context: click.Context, /, text: str, **given: Any) -> int:
    """Record a note in the run's journal."""
    return order(context, "Note", given, text=text)


def confirm(question: str) -> None:
    """Ask on a terminal. Without a terminal, refuse and name --yes."""
    nobody = "this can lose work, and there is no terminal to ask on"
    confirming.confirm(question, nobody=nobody, hint="add --yes to go ahead", declined="nothing was ordered")
