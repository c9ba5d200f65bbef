"""The commands that give an order to a live run: pause, resume, stop, checkpoint, note, extend, rollback, emergency.

Each prints the sequence number of its event. It then waits until the order is done or refused; with `--no-wait` only
until the event is durable. An order that can lose work asks first.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from textwrap import fill
from typing import Any, Final

import click
import msgspec

from tolariad.cli import naming, output, runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.long_work import bar
from tolariad.cli.resuming import or_starts
from tolariad.control.client import NotReachable, read_reply
from tolariad.control.replies import Recorded
from tolariad.core.calc.bounds import ID_CHARACTERS_MAX, NOTE_CHARACTERS_MAX, text_refusal
from tolariad.forensics.words import safe

Parameters = dict[str, Any]
_REPLIES_MAX: Final = 8


def at_most(characters: int) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a check for a text that is sent: valid Unicode, and not longer than the daemon accepts."""

    def check(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
        wrong = text_refusal(text, characters, f"the {parameter.human_readable_name}") if text is not None else None
        if wrong is not None:
            raise click.BadParameter(wrong)
        return text

    return check


def sends(
    method: str, question: Callable[[runs.Target, Parameters], str] | None = None
) -> Callable[[Callable[..., Parameters]], Callable[..., int]]:
    """Make a command of a function that returns the parameters of an order; those that are None are not sent.

    It gets the options of every order and those that name the run. The function gets only the other ones. If a
    parameter follows from the run, its value is a function of the run's Target. If `question` is given, the command
    asks it first, unless the option `yes` is set.
    """

    def decorate(function: Callable[..., Parameters]) -> Callable[..., int]:
        @naming.options
        @click.option("--reason", callback=at_most(NOTE_CHARACTERS_MAX), help="The reason, recorded in the journal.")
        @click.option(
            "--id",
            "id_",
            callback=at_most(ID_CHARACTERS_MAX),
            help="An id of your choice; a repeat with the same id is not carried out twice.",
        )
        @click.option("--no-wait", is_flag=True, help="Do not wait for the outcome; return once the order is on disk.")
        @click.option(
            "--json", "as_json", is_flag=True, help="Print JSON lines: the sequence number, then the outcome."
        )
        @functools.wraps(function)
        def command(*, id_: str | None, reason: str | None, no_wait: bool, as_json: bool, **given: Any) -> int:
            place = naming.taken(given)
            is_sure = question is not None and given.pop("yes")
            parameters, target = {"id": id_, "reason": reason, **function(**given)}, runs.find(**place)
            values = {name: value(target) if callable(value) else value for name, value in parameters.items()}
            sent = {name: value for name, value in values.items() if value is not None}
            if question is not None and not is_sure:
                output.confirm(question(target, sent))
            return give(target, method, sent, no_wait, output.put_json if as_json else _put_words)

        return command

    return decorate


def takes_run(function: Callable[..., int]) -> Callable[..., int]:
    """Add the argument RUN."""
    return naming.argument(function)


def give(
    target: runs.Target, method: str, parameters: Parameters, no_wait: bool, show: Callable[[dict[str, Any]], None]
) -> int:
    """Send one order, wait for its outcome unless `no_wait` is given, show both and return the exit code."""
    seq, outcome = 0, None
    try:
        with target.connect(timeout_s=60.0) as client:
            replies = [client.call(method, parameters)] if no_wait else client.stream(method, parameters)
            # One when the order is recorded, one when it has ended. A server that sends more is none of ours.
            for reply in islice(_awaited(replies), _REPLIES_MAX):
                told = msgspec.to_builtins(read_reply(reply, Recorded))
                seq, outcome = told["seq"], told["outcome"]
                show({"method": method, "seq": seq, "outcome": outcome})
                if outcome is not None:
                    break
    except NotReachable:
        if not seq:
            _refuse_complete(method, target)
            raise
        # The daemon has ended. After a stop, that is the success.
        outcome = {"state": "done" if method == "Stop" else "ended"}
    state = (outcome or {}).get("state", "no outcome")
    if no_wait or state == "done":
        return Exit.DONE
    what = f"the {_said(method)} recorded as event {seq} was not carried out ({state})"
    raise CommandError(Exit.NO, what, hint=f"`tolaria why RUN seq:{seq}` shows what followed", name="NotDone")


def _awaited(replies: Iterable[Any]) -> Iterator[Any]:
    """Yield the replies, with a bar on the terminal while one is waited for."""
    replies = iter(replies)
    while True:
        with bar("waiting for the run"):
            reply = next(replies, None)
        if reply is None:
            return
        yield reply


def _put_words(told: dict[str, Any]) -> None:
    words = in_words(told)
    # A file is searched by line; only a terminal has an edge.
    output.put(fill(words, output.COLUMNS, subsequent_indent="  ") if sys.stdout.isatty() else words, flush=True)


def in_words(told: dict[str, Any]) -> str:
    """Return one line about an order: that it is recorded or, once there is one, its outcome."""
    outcome, said = told["outcome"], _said(told["method"])
    if outcome is None:
        return f"{said}: recorded as event {told['seq']}"
    outcome = output.printable(outcome)
    by = f" by {outcome['event']}, event {outcome['seq']}" if outcome.get("event") else ""
    why = f": {outcome['why']}" if outcome.get("why") else ""
    at = f", from step {outcome['step']} on" if outcome.get("step") is not None else ""
    return f"{said}: {outcome['state']}{by}{at}{why}"


def _said(method: str) -> str:
    """Return the name of a method on the command line: `lr set` for LrSet."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", method).lower()


@click.command()
@takes_run
@sends("Pause")
def pause() -> Parameters:
    """Pause a run at its next step boundary.

    The trainer stays alive and keeps its memory. `tolaria resume` continues the run.
    """
    return {}


@click.command()
@takes_run
@or_starts
@sends("Resume")
@click.option("--after-gap", is_flag=True, help="Resume although a repair lost acknowledged events.")
def resume(*, after_gap: bool) -> Parameters:
    """Continue a paused or frozen run, or cancel a stop.

    With --ranks: go on with a run that has ended before its end, as `tolariad run` does, with another number of ranks.
    """
    return {"after_gap": after_gap or None}


@click.command()
@takes_run
@sends("Extend")
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="End with epoch N.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="End with step N, within an epoch or not.")
def extend(*, epochs: int | None, steps: int | None) -> Parameters:
    """Let the training end later or earlier.

    N counts from the beginning of the run. The new end holds after a restart too. Learning rates keep the curves that
    they were computed with.
    """
    if (epochs is None) == (steps is None):
        raise click.UsageError("give one of --epochs and --steps")
    return {"epochs": epochs, "steps": steps}


def _refuse_complete(method: str, target: runs.Target) -> None:
    """Raise CommandError if an end was ordered, and the journal says that the run is complete: its daemon has ended."""
    if method != "Extend" or (journal := target.journal) is None:
        return
    state = runs.folded(journal)
    if state.run.phase.value == "completed":
        done = (
            f"{output.counted(state.progress.epoch_finished, 'epoch')}, {output.counted(state.progress.step, 'step')}"
        )
        what = f"the run is complete: {done}"
        hint = f"`tolariad run --dir {target.folder} --epochs N` with more epochs continues it"
        raise CommandError(Exit.REFUSED, what, hint=hint, name="WrongPhase")


@click.command()
@takes_run
@sends("Checkpoint")
def checkpoint() -> Parameters:
    """Take a checkpoint at the next step boundary."""
    return {}


@click.command()
@takes_run
@sends("Stop")
@click.option("--now", is_flag=True, help="Stop without a checkpoint; the steps since the last one are re-run later.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def stop(*, now: bool, yes: bool) -> Parameters:
    """Take a checkpoint at the next step boundary and stop.

    The daemon and the trainer end; `tolariad run --dir RUN` continues the run. In a program, `Tolaria.train`
    returns or the loop ends; the next start of the program continues the run.
    """
    if now and not yes:
        output.confirm("Stop without a checkpoint? The next start must run the steps since the last checkpoint again.")
    return {"mode": "now" if now else None}


@click.command()
@click.argument("text", callback=at_most(NOTE_CHARACTERS_MAX))
@sends("Note")
def note(*, text: str) -> Parameters:
    """Record a note in the run's journal."""
    return {"text": text}


@click.command()
@click.argument("text", callback=at_most(NOTE_CHARACTERS_MAX))
@sends("Stage")
def stage(*, text: str) -> Parameters:
    """Announce a change that may make the loss jump.

    Examples are another objective, new classes, or harder data. From the next step on the detector learns the loss's
    new level, and the jump is no finding. `tolaria why RUN stage` shows it.
    """
    return {"text": text}


def _rollback_question(target: runs.Target, parameters: Parameters) -> str:
    """Return the question of a rollback: where it goes, and what it gives up. Raises CommandError if it is refused."""
    from tolariad.core import messages as m
    from tolariad.core.messages.sentences.text import sentence
    from tolariad.core.rules import rollback as rules

    with target.connect():
        journal = target.journal
    if journal is None:
        return "Roll back? The steps after the checkpoint will be abandoned (they stay in the journal)."
    places = {name: value for name, value in parameters.items() if name in ("to", "epoch", "step")}
    tier = m.Tier(parameters["tier"]) if "tier" in parameters else None
    found = rules.order(runs.folded(journal), m.Rollback(**places, tier=tier))
    if isinstance(found, m.Refusal):
        raise CommandError(Exit.REFUSED, f"{found.error}: {found.why}", name=found.error)
    return f"{safe(sentence(found))} The steps stay in the journal. Roll back?"


@click.command()
@takes_run
@sends("Rollback", _rollback_question)
@click.option(
    "--to", "--checkpoint", "to", metavar="ID", help="Go back to this checkpoint; `tolaria checkpoints RUN` lists them."
)
@click.option(
    "--epoch",
    type=click.IntRange(min=0),
    metavar="N",
    help="Go back to the newest checkpoint at or before the end of epoch N.",
)
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="Go back to the newest checkpoint at or before step N."
)
@click.option(
    "--tier",
    type=click.Choice(["fast", "full"]),
    help="fast restores a snapshot from memory, full a checkpoint from disk.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def rollback(*, tier: str | None, **target: Any) -> Parameters:
    """Go back to a checkpoint and train on from there.

    Without --to, --epoch or --step the target is the newest promoted checkpoint. The steps after the target are
    abandoned: they stay in the journal, but no longer count.
    """
    if sum(one is not None for one in target.values()) > 1:
        raise click.UsageError("--to, --epoch and --step each name a target: give only one of them")
    if target["to"] is not None and not target["to"].strip():
        # An unset variable in a script gives the empty string. It must not mean "the newest promoted checkpoint".
        raise click.UsageError("--to is empty: name a checkpoint, or leave --to out for the newest promoted one")
    named = click.get_current_context().params["id_"] or ""
    if re.fullmatch(r"c\d+", named) and all(one is None for one in target.values()):
        # In commands that read, --id is a checkpoint. Here it would go back to another one.
        raise click.UsageError(f"--id names the order, not the checkpoint: to go back to {named}, give --to {named}")
    return {**target, "tier": tier}


@click.command()
@click.argument("level", type=click.Choice(["minor", "major", "severe", "critical"], case_sensitive=False))
@takes_run
@sends("Emergency")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def emergency(*, level: str, yes: bool) -> Parameters:
    """Raise an emergency of the given level.

    MINOR is only recorded. MAJOR rolls back to a checkpoint. SEVERE rolls back to a snapshot in memory and enters
    conservative mode. CRITICAL freezes the trainer at once. The command returns when the reaction is complete.
    """
    if not yes and level.lower() != "minor":
        output.confirm(f"Raise a {level.upper()} emergency? It interrupts the training.")
    return {"level": level.lower()}
