"""`tolaria diff`: the first point at which two runs differ, or what changed in one run between two moments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from journal.reader import Reader
from tolariad.cli import naming, output, runs
from tolariad.cli.completing import run_names
from tolariad.cli.diff_words import about, told
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.events import line, position
from tolariad.cli.long_work import bar
from tolariad.cli.wrapping import filled, width
from tolariad.core.calc.text.plain import plain, plain_event, safe
from tolariad.forensics.differences.contexts import Differing
from tolariad.forensics.differences.moments import Between, between
from tolariad.forensics.differences.runs import Comparison, Verdict, compare_runs
from tolariad.forensics.links import Link, causes_of
from tolariad.forensics.moment import seq_at
from tolariad.forensics.positions import BadPosition, JournalPosition
from tolariad.forensics.timeline import decode_fields

_EXIT: Final = {Verdict.SAME: 0, Verdict.INCOMPARABLE: 2}
_INDENT: Final = 4
_TYPES_SHOWN: Final = 12


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN] A B | RUN_A RUN_B", shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.options
def diff(*, words: tuple[str, ...], as_json: bool, **place: Any) -> int:
    """Show the first point at which two runs differ, or what changed in RUN from A to B.

    A and B are positions in a run: a sequence number, step:N, epoch:N or a time. RUN_A and RUN_B are runs.

    The records of two runs are compared in the order in which training made them, by their bits: data, loss, gradient
    norm, rates, metrics, validations, orders. Configuration, code, libraries and host are compared besides.

    Exit codes: 0: the same. 1: they differ. 2: wrong usage, or the records cannot be compared.
    """
    target = runs.named(**place)
    if target is None and len(words) == 2 and not all(map(_is_position, words)):
        folders = [runs.journal_of(runs.find(run=word)) for word in words]
        return _diff_runs(words, folders, as_json=as_json)
    if target is None and len(words) == 3:
        target, words = runs.find(run=words[0]), words[1:]
    if len(words) != 2:
        raise click.UsageError("give two runs, or a run and two positions in it such as step:100 and now")
    return _diff_moments(runs.journal_of(target if target is not None else runs.find()), words, as_json=as_json)


def _is_position(word: str) -> bool:
    """Return whether this is a position and no run."""
    try:
        position(word)
    except BadPosition:
        return False
    return not Path(word).is_dir() and not runs.is_known(word)


def _diff_runs(names: Sequence[str], folders: Sequence[Path], *, as_json: bool) -> int:
    with Reader(folders[0]) as a, Reader(folders[1]) as b:
        with bar("comparing"):
            found = compare_runs(a, b)
        first = found.first
        events: list[list[dict[str, Any]]] = [
            _with_causes(reader, seq) if seq is not None else []
            for reader, seq in zip((a, b), (first.seq_a, first.seq_b) if first else (None, None), strict=True)
        ]
    if as_json:
        output.put_json(_comparison_json(found, names, events))
    else:
        _put_comparison(found, names, events)
    return _EXIT.get(found.verdict, Exit.NO)


def _with_causes(reader: Reader, seq: int) -> list[dict[str, Any]]:
    """Return an event after the chain of its causes, each with its number."""
    entry = next(iter(reader.seek(seq=seq)))
    fields = decode_fields(entry.event)
    return [{"seq": one.seq, **one.fields} for one in causes_of(reader, Link(seq, fields))] + [{"seq": seq, **fields}]


def _put_comparison(found: Comparison, names: Sequence[str], events: Sequence[list[dict[str, Any]]]) -> None:
    output.put(f"{found.verdict.value}: {told(found, names)}", indent=_INDENT)
    for name, chain in zip(names, events, strict=True):
        for number, fields in enumerate(chain):
            label = filled("" if number else safe(name), max(width(safe(one)) for one in names))
            role = "" if number == len(chain) - 1 else "because of "
            rest = {key: value for key, value in fields.items() if key != "seq"}
            output.put(f"  {label}  {role}{line(fields['seq'], rest)}", indent=_INDENT * 2)
    for text in about(found, names):
        output.put(text, indent=_INDENT)
    _put_context(found.context, f"{names[0]} -> {names[1]}")
    for why in found.not_compared:
        output.note(f"not compared: {why}")


def _put_context(context: Sequence[Differing], sides: str) -> None:
    if not context:
        output.put("configuration, data, code, libraries and host: the same")
        return
    output.put(f"conditions that differ ({safe(sides)}):")
    for one in context:
        note = "" if one.matters else "  (changes no step)"
        output.put(f"  {one.part.value}  {safe(one.name)}: {_short(one.a)} -> {_short(one.b)}{note}", indent=_INDENT)


def _short(value: Any) -> str:
    if value is None:
        return "absent"
    text = safe(str(plain(value)))
    return text if len(text) <= 60 else f"{text[:59]}…"


def _comparison_json(found: Comparison, names: Sequence[str], events: Sequence[list[dict[str, Any]]]) -> dict[str, Any]:
    shown: dict[str, Any] = plain(msgspec.to_builtins(found, builtin_types=(bytes,)))
    sides = {
        side: [plain_event(one["seq"], {key: value for key, value in one.items() if key != "seq"}) for one in chain]
        for side, chain in zip("ab", events, strict=True)
    }
    return {"run_a": names[0], "run_b": names[1], "sentence": told(found, names), **shown, "events": sides}


def _diff_moments(folder: Path, words: Sequence[str], *, as_json: bool) -> int:
    places = [_position(word) for word in words]
    with Reader(folder) as reader:
        first, last = (seq_at(reader, place) for place in places)
        if first > last:
            raise CommandError(Exit.USAGE, f"{words[0]} is after {words[1]}: give the earlier point first")
        with bar("comparing", first, last) as at:
            found = between(reader, first, last, at)
        events = {seq: decode_fields(next(iter(reader.seek(seq=seq))).event) for seq in found.events}
    if as_json:
        shown: dict[str, Any] = plain(msgspec.to_builtins(found, builtin_types=(bytes,)))
        output.put_json({**shown, "events": [plain_event(seq, fields) for seq, fields in events.items()]})
    else:
        _put_between(found, events)
    return Exit.NO if found.changed or found.context else Exit.DONE


def _position(word: str) -> JournalPosition:
    try:
        return position(word)
    except BadPosition as error:
        raise click.UsageError(str(error)) from error


def _put_between(found: Between, events: dict[int, dict[str, Any]]) -> None:
    others = sum(found.types.values()) - found.types.get("StepCompleted", 0)
    steps, rest = output.counted(found.steps, "step"), output.counted(others, "other event")
    output.put(f"from event {found.first} to event {found.last}: {steps} and {rest}")
    kinds = [f"{count} {safe(kind)}" for kind, count in found.types.items() if kind != "StepCompleted"]
    if kinds:
        more = f", {len(kinds) - _TYPES_SHOWN} more types" if len(kinds) > _TYPES_SHOWN else ""
        output.put(f"  {', '.join(kinds[:_TYPES_SHOWN])}{more}", indent=_INDENT)
    _put_context(found.context, "before -> after")
    if not found.changed:
        output.put("the state did not change")
        return
    output.put("fields of the state that changed, each with the last event that did it:")
    for one in found.changed:
        output.put(f"  {one.name}: {_short(one.a)} -> {_short(one.b)}  (event {one.seq})", indent=_INDENT)
    if events:
        output.put("these events:")
    for seq, fields in events.items():
        output.put(f"  {line(seq, fields)}", indent=_INDENT * 2)
