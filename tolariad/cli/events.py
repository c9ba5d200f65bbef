"""`tolaria events`: list the events of a journal, with the options of `journalctl`."""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from journal import JournalEntry
from journal.reader import Reader
from tolariad.cli import naming, output, runs
from tolariad.cli.errors import Exit
from tolariad.cli.long_work import bar
from tolariad.cli.wrapping import fitted_to
from tolariad.core.calc.text.nearest import all_near, did_you_mean
from tolariad.core.calc.text.phrases import with_run
from tolariad.core.calc.text.plain import plain_event
from tolariad.forensics import timeline
from tolariad.forensics.bookkeeping import BOOKKEEPING
from tolariad.forensics.positions import JournalPosition, PositionKind, parse_position
from tolariad.forensics.timeline import number_in
from tolariad.forensics.words import block, in_words, named, safe

# A long sentence goes on below its type.
_INDENT: Final = 22
# How far back the last few events are searched if steps are left out.
_SEARCHED_MAX: Final = 65_536
_COLOURS: Final = (
    (("RunFailed", "TrainerDied", "RunFrozen", "RerunDiverged", "CheckpointRejected", "ExceptionRaised"), "red"),
    (
        ("TrainerHung", "TrainerUnkillable", "CheckpointAborted", "CheckpointUnfit", "CommandRefused", "ReportRefused"),
        "red",
    ),
    (("Run", "Daemon"), "green"),
    (("Pause", "Resume", "Stop", "Note", "CheckpointRequested"), "yellow"),
    (("StepCompleted",), "dim"),
)


def position(text: str) -> JournalPosition:
    """Return the position that `text` names; times are local and relative to now. Raises BadPosition."""
    return parse_position(text, datetime.now().astimezone())


def read_position(_: click.Context, __: click.Parameter, text: str | None) -> JournalPosition | None:
    """Read an option that names a position."""
    return position(text) if text is not None else None


def _pattern(_: click.Context, __: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    """Compile a pattern. As in journalctl, one without capital letters ignores case."""
    if text is None:
        return None
    try:
        return re.compile(text, 0 if any(c.isupper() for c in text) else re.IGNORECASE)
    except re.error as error:
        raise click.UsageError(f"-g {text!r} is not a regular expression: {error}") from error


SINCE: Final = click.option("--since", callback=read_position, help="Start here: a time, seq:N, step:N or epoch:N.")
UNTIL: Final = click.option("--until", callback=read_position, help="End here: a time, seq:N, step:N or epoch:N.")


@click.command()
@naming.argument
@click.option("-f", "--follow", is_flag=True, help="Show new events as they come, after the last 10 (or -n).")
@click.option("-t", "--type", "types", multiple=True, help="Only types that begin with this text. Repeatable.")
@click.option("-a", "--all", "everything", is_flag=True, help="Show every event: steps and bookkeeping too.")
@click.option("-g", "--grep", "pattern", callback=_pattern, help="Only events that match this regular expression.")
@SINCE
@UNTIL
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N events.")
@click.option("-r", "--reverse", is_flag=True, help="Show the newest event first.")
@output.in_style("json", "cat", "verbose", more=", cat only the sentence")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option("--lineage", is_flag=True, help="Leave out the steps that a rollback has abandoned.")
@naming.takes_journal_without_r
def events(
    journal: Path,
    *,
    follow: bool,
    everything: bool,
    lines: int | None,
    reverse: bool,
    style: str,
    as_json: bool,
    **selection: Any,
) -> int:
    """Show the events of RUN, oldest first.

    Steps and bookkeeping are left out, unless you ask for them by -a, or select events by -t, -g or --lineage. JSON has
    every event.
    """
    if follow and reverse:
        raise click.UsageError("-f and -r exclude each other: -f waits for newer events, -r goes to older ones")
    shown = _STYLES["json" if as_json else style]
    query = timeline.Query(**selection)
    is_chosen = everything or shown is _json or query.types or query.pattern is not None or query.lineage
    if not is_chosen:
        query = msgspec.structs.replace(query, without=BOOKKEEPING)
    unheard_of = _unheard_of(query.types)
    if unheard_of and follow:
        raise click.UsageError(unheard_of)
    found, run = False, runs.named_by(journal)
    with Reader(journal) as reader:
        entries = iter(_followed(reader, query, lines) if follow else _chosen(reader, query, lines, reverse=reverse))
        # The first one may be far away. With -f nobody knows when it comes.
        with nullcontext() if follow else bar("searching"):
            first = list(islice(entries, 0 if follow else 1))
        for entry in chain(first, entries):
            found = True
            text = shown(entry.seq, timeline.decode_fields(entry.event))
            text = text if shown is _json else with_run(text, run)
            # Flush if a program may be waiting for the line.
            for one in fitted_to(sys.stdout, text, _INDENT) if shown is line else [text]:
                print(one, flush=follow or shown is _json)
        if query.without and (sys.stderr.isatty() or not found):
            _say_what_is_left_out(reader, lines)
    if unheard_of and not found:
        # Refuse only now: the journal of a newer version may hold types that this version does not know.
        raise click.UsageError(unheard_of)
    return Exit.DONE


def _say_what_is_left_out(reader: Reader, count: int | None) -> None:
    """Tell a person that events were left out, and how they are shown."""
    searched = f" of the last {_SEARCHED_MAX} events" if count and reader.last_seq > _SEARCHED_MAX else ""
    output.note(f"steps and bookkeeping{searched} are left out; -a shows them")


def _unheard_of(types: tuple[str, ...]) -> str:
    """Return an error text for the first of `types` with which no name of an event begins, or the empty string."""
    if not types:
        return ""
    from tolariad.core import messages as m
    from tolariad.core.messages.vocabulary import EVENT_TYPES

    orders = [kind.__name__ for kind in m.BOUNDARY_ORDERS]
    with_orders = [f"{kind}:{one}" for kind in ("OrderGiven", "OrderActed", "OrderAborted") for one in orders]
    names = (*EVENT_TYPES, *orders, *with_orders)
    for text in types:
        if not any(name.startswith(text) for name in names):
            near = did_you_mean(", ".join(_near(text, names)))
            return f"-t {text!r}: no event type begins with this{near or '; docs/events.md lists all types'}"
    return ""


def _near(text: str, names: Iterable[str]) -> list[str]:
    """Return the names that contain the text, in upper or lower case, else those that are spelt alike."""
    low = {name.lower(): name for name in names}
    inside = [name for name in low if text.lower() in name]
    return [low[name] for name in inside[:5] or all_near(text.lower(), low, 3)]


def _chosen(reader: Reader, query: timeline.Query, count: int | None, *, reverse: bool) -> Iterable[JournalEntry]:
    if count is not None:
        if query.without and query.since is None and reader.last_seq > _SEARCHED_MAX:
            # A person who wants the last few rows does not wait until a million steps have been read.
            first = JournalPosition(PositionKind.SEQ, reader.last_seq - _SEARCHED_MAX)
            query = msgspec.structs.replace(query, since=first)
        found = timeline.last_events(reader, query, count)
        return reversed(found) if reverse else found
    return timeline.backwards(reader, query) if reverse else timeline.forwards(reader, query)


def _followed(reader: Reader, query: timeline.Query, count: int | None) -> Iterator[JournalEntry]:
    if count is None and query.since is None:
        count = 10
    # Events up to `after` are searched now. New ones may come in the meantime and be shown already.
    after = reader.last_seq
    for entry in _chosen(reader, query, count, reverse=False):
        yield entry
        after = max(after, entry.seq)
    yield from timeline.follow(reader, query, after, time.sleep)


@functools.lru_cache(maxsize=8)
def _second(whole_s: int) -> tuple[str, str]:
    """Return date and time, and the offset, of a whole second. Cached: it is most of the cost of an event's line."""
    try:
        moment = datetime.fromtimestamp(whole_s).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"@{whole_s}", ""  # outside the calendar's range: show the number of seconds
    return f"{moment:%Y-%m-%d %H:%M:%S}", f"{moment:%z}"


def stamp(wall_ns: int) -> str:
    """Return local time with microseconds and offset."""
    whole_s, rest_ns = divmod(wall_ns, 1_000_000_000)
    date_time, offset = _second(whole_s)
    return f"{date_time}.{rest_ns // 1000:06d}{offset}"


@functools.lru_cache(maxsize=8)
def _short(whole_s: int) -> str:
    """Return local date and time as journalctl does, without the year."""
    try:
        return f"{datetime.fromtimestamp(whole_s).astimezone():%b %d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"@{whole_s}"


@functools.lru_cache(maxsize=256)
def _painted(kind: str, _stream: int) -> str:
    colour = next((colour for beginnings, colour in _COLOURS if kind.startswith(beginnings)), "")
    return output.painted(safe(kind), colour)


def _kind(fields: dict[str, Any]) -> str:
    """Return the event's type in its colour."""
    return _painted(named(fields), id(sys.stdout))


def line(seq: int, fields: dict[str, Any]) -> str:
    """Return one event as one line: when, its number, its type, its sentence."""
    return f"{_short((number_in(fields, 'wall') or 0) // 1_000_000_000)} {seq:>5} {_kind(fields)}  {in_words(fields)}"


def _cat(_: int, fields: dict[str, Any]) -> str:
    return in_words(fields)


def verbose(seq: int, fields: dict[str, Any]) -> str:
    """Return one event as a block: when, its number, its type, its sentence, every field."""
    rest = {name: value for name, value in fields.items() if name not in ("type", "wall")}
    return f"{stamp(number_in(fields, 'wall') or 0)} {seq} {_kind(fields)}\n    {in_words(fields)}\n{block(rest)}"


def _json(seq: int, fields: dict[str, Any]) -> str:
    return output.json_line(plain_event(seq, fields))


_STYLES: Final[dict[str, Callable[[int, dict[str, Any]], str]]] = {
    "short": line,
    "json": _json,
    "cat": _cat,
    "verbose": verbose,
}
