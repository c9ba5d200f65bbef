"""`tolaria state` and `tolaria why`: fold the journal, and follow causes in it."""

from __future__ import annotations

import contextlib
from typing import Any

import click
import msgspec

from journal.reader import Reader
from tolariad.cli import output, runs
from tolariad.cli.errors import Exit
from tolariad.cli.events import line, position, read_position
from tolariad.core.plain import plain, plain_event
from tolariad.forensics.moment import seq_at, state_at
from tolariad.forensics.positions import BadPosition, JournalPosition
from tolariad.forensics.why import Answer
from tolariad.forensics.why import why as explain
from tolariad.forensics.words import block, is_cut, safe


@click.command()
@click.argument("run")
@click.option(
    "--at", callback=read_position, help="At this point: a sequence number, step:N, epoch:N or a time. Default: now."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def state(run: str, at: JournalPosition | None, as_json: bool) -> int:
    """Show the state of RUN, now or at any point of its history."""
    with Reader(runs.journal_folder(run)) as reader:
        replayed = state_at(reader, seq_at(reader, at) if at else None)
    shown: dict[str, Any] = plain(msgspec.to_builtins(replayed.state, builtin_types=(bytes,)))
    if as_json:
        output.put_json({**shown, "unknown_events": replayed.unknown})
    else:
        output.put(f"state after event {shown['seq']}")
        output.put(block({name: value for name, value in shown.items() if name != "seq"}, indent="  "))
    for kind, count in replayed.unknown.items():
        output.note(f"{count} events of type {safe(kind)} are unknown to this version and were skipped")
    return Exit.DONE


@click.command()
@click.argument("run")
@click.argument("topic")
@click.option(
    "--at",
    callback=read_position,
    help="Search up to here: a sequence number, step:N, epoch:N or a time. Default: now.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def why(run: str, topic: str, at: JournalPosition | None, as_json: bool) -> int:
    """Show the causes of an event of RUN, and its consequences.

    TOPIC selects the event: seq:N, step:N, a checkpoint's id, an event type, or one of these words: pause, resume,
    stop, end, death, hang, failure, freeze, checkpoint, rejected, rerun, completion, rollback, spike, skip, lr,
    violation, conservative, memory, phase. If several events fit, the newest is shown.
    """
    with Reader(runs.journal_folder(run)) as reader:
        until_seq = seq_at(reader, at) if at else None
        answer = explain(reader, topic, position=_as_position(topic), until_seq=until_seq)
    if as_json:
        output.put_json(_json(answer))
    else:
        _put_words(answer)
    return Exit.DONE


def _as_position(topic: str) -> JournalPosition | None:
    """Return the position that `topic` names (`seq:N`, `step:N`, a time), or None if it is a word."""
    with contextlib.suppress(BadPosition):
        return position(topic) if ":" in topic or topic.isdecimal() else None
    return None


def _json(answer: Answer) -> dict[str, Any]:
    return {
        "topic": answer.topic,
        "event": plain_event(answer.event.seq, answer.event.fields),
        "causes": [plain_event(link.seq, link.fields) for link in answer.causes],
        "consequences": [plain_event(link.seq, link.fields) for link in answer.consequences],
        "searched_all": answer.searched_all,
    }


def _put_words(answer: Answer) -> None:
    for link in answer.causes:
        output.put(f"  because  {line(link.seq, link.fields)}")
    output.put(f"{output.painted('this     ', 'bold')}  {line(answer.event.seq, answer.event.fields)}")
    # The lines show the beginning of a long text. Here is the place for all of it.
    long = {name: value for name, value in answer.event.fields.items() if isinstance(value, str) and is_cut(value)}
    if long:
        output.put(block(long, indent="           "))
    for link in answer.consequences:
        output.put(f"  led to   {line(link.seq, link.fields)}")
    if not answer.causes:
        output.note("this event has no recorded cause: an input from outside or a timer led to it")
    if not answer.searched_all:
        output.note(
            "the search for consequences ended early; there may be more. "
            f"`tolaria events RUN --since seq:{answer.event.seq}` lists what follows"
        )
