"""Record decisions while tests run, and replay them against the present code.

* Record: `TOLARIA_RECORD_DECISIONS=FOLDER python -m pytest tests/core tests/kernel tests/journals` writes one file for
  each process.
* Compare: `python -m tests.core.reactions.recording FOLDER` prints every kind of difference with its count and one
  example.
* Keep: `python -m tests.core.reactions.recording FOLDER --keep` decides a few records of every kind anew and writes
  them to decisions.zst, which the ordinary suite replays (test_table.py). Do this if a rule changes on purpose, and
  name the differences in the commit.

A record holds the state before, the input, the time, and the outcome. Of plain steps one in twenty is kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Union

import msgspec
import zstandard

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.decision import Accepted, Answer
from tolariad.core.messages import inputs
from tolariad.core.messages.vocabulary import DaemonEffect, TrainerEffect, decode_event, encode_event
from tolariad.core.rules.table.orders import ORDERS
from tolariad.core.state.run_state import RunState, fold

VARIABLE = "TOLARIA_RECORD_DECISIONS"
PLAIN_STEPS_EACH = 20
KEPT = Path(__file__).with_name("decisions.zst")
_OF_A_KIND = 4
_WINDOW_LOG = 25


class Outcome(msgspec.Struct, frozen=True):
    """A decision: stamped events, effects, the answer."""

    events: tuple[m.Event, ...]
    effects: tuple[m.Effect, ...]
    answer: Answer | None


class Record(msgspec.Struct, frozen=True):
    """One decision: the state before it, its input, its time, its outcome."""

    state: RunState
    given: m.Input
    now: m.Now
    outcome: Outcome


class _Written(msgspec.Struct, frozen=True, array_like=True):
    """A record as it lies in a file."""

    state: msgspec.Raw
    kind: str
    given: msgspec.Raw
    now: m.Now
    events: tuple[msgspec.Raw, ...]
    effects: tuple[TrainerEffect | DaemonEffect, ...]
    accepted: Accepted | None
    refused: m.Refusal | None


class _WrittenOpened(msgspec.Struct, frozen=True):
    mode: m.StartMode
    facts: tuple[msgspec.Raw, ...]
    disk: m.DiskMeasured | None = None


class _WrittenScheduled(msgspec.Struct, frozen=True):
    # Tests record any event by this input.
    recorded: msgspec.Raw


class _WrittenCommand(msgspec.Struct, frozen=True):
    command: msgspec.Raw
    actor: m.Actor


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_encode = _encoder.encode
_decode_state = msgspec.msgpack.Decoder(RunState).decode
_decode_written = msgspec.msgpack.Decoder(_Written).decode


def written(record: Record) -> bytes:
    """One record as bytes."""
    answer = record.outcome.answer
    return _encode(
        _Written(
            msgspec.Raw(_encode(record.state)),
            type(record.given).__name__,
            msgspec.Raw(_encode(record.given)),
            record.now,
            tuple(msgspec.Raw(encode_event(event)) for event in record.outcome.events),
            record.outcome.effects,
            answer if isinstance(answer, Accepted) else None,
            answer if isinstance(answer, m.Refusal) else None,
        )
    )


def read(raw: bytes) -> Record:
    """The record that was written."""
    found = _decode_written(raw)
    events = tuple(_event(one) for one in found.events)
    outcome = Outcome(events, found.effects, found.accepted or found.refused)
    return Record(_decode_state(found.state), _given(found), found.now, outcome)


def _event(raw: msgspec.Raw) -> m.Event:
    event = decode_event(raw)
    if not isinstance(event, m.Event):
        raise OfATest(str(event))
    return event


def _given(found: _Written) -> m.Input:
    if found.kind == "Opened":
        opened = msgspec.msgpack.decode(found.given, type=_WrittenOpened)
        return m.Opened(mode=opened.mode, facts=tuple(_event(one) for one in opened.facts), disk=opened.disk)
    if found.kind == "Scheduled":
        return m.Scheduled(recorded=_event(msgspec.msgpack.decode(found.given, type=_WrittenScheduled).recorded))
    if found.kind == "CommandReceived":
        received = msgspec.msgpack.decode(found.given, type=_WrittenCommand)
        command = msgspec.msgpack.decode(received.command, type=Union[tuple(ORDERS)])  # noqa: UP007 - from a list
        return m.CommandReceived(command=command, actor=received.actor)
    return _decoder(found.kind).decode(found.given)


@cache
def _decoder(kind: str) -> msgspec.msgpack.Decoder[Any]:
    if not hasattr(inputs, kind):
        raise OfATest(kind)
    return msgspec.msgpack.Decoder(getattr(inputs, kind))


def is_plain_step(given: m.Input, outcome: Outcome) -> bool:
    """Is it a step of which nothing but its own event follows?"""
    return (
        isinstance(given, m.ReportReceived)
        and isinstance(given.report, m.StepReport)
        and [type(event) for event in outcome.events] == [m.StepCompleted]
        and not outcome.effects
    )


class OfATest(ValueError):
    """An event or input of a type that only a test knows."""


class Recorder:
    """Append records to one compressed file of length-prefixed messages."""

    def __init__(self, path: Path, level: int = 1, plain_steps_each: int = PLAIN_STEPS_EACH) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(level, window_log=_WINDOW_LOG)
        self._file = zstandard.ZstdCompressor(compression_params=parameters).stream_writer(path.open("wb"))
        self._steps, self._each = 0, plain_steps_each

    def add(self, record: Record) -> None:
        """Keep the record, unless it is one of many plain steps."""
        if is_plain_step(record.given, record.outcome):
            self._steps += 1
            if self._steps % self._each:
                return
        try:
            raw = written(record)
        except (OverflowError, UnicodeEncodeError):
            return  # tests of the wire give what no event can hold
        self._file.write(len(raw).to_bytes(4, "little") + raw)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


def records(path: Path) -> Iterator[Record]:
    """Read every record of one file."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
    with path.open("rb") as file, decompressor.stream_reader(file) as stream:
        while head := _exactly(stream, 4):
            raw = _exactly(stream, int.from_bytes(head, "little"))
            # Tests of the wire give what no command's type admits.
            with contextlib.suppress(msgspec.ValidationError, OfATest):
                yield read(raw)


def _exactly(stream: Any, size: int) -> bytes:
    parts, left = [], size
    while left and (part := stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


# -- comparing ---------------------------------------------------------------------------------------------------------


def differences(record: Record, found: Outcome) -> Iterator[str]:
    """Name each kind of difference between what was recorded and what is decided now."""
    was = record.outcome
    yield from _of_messages("events", was.events, found.events)
    yield from _of_messages("effects", was.effects, found.effects)
    if was.answer != found.answer:
        yield f"answer: {was.answer} became {found.answer}"
    if _encode(fold(record.state, was.events)) != _encode(fold(record.state, found.events)):
        yield "state differs after it"


def _of_messages(what: str, was: tuple[Any, ...], found: tuple[Any, ...]) -> Iterator[str]:
    before, after = [type(one).__name__ for one in was], [type(one).__name__ for one in found]
    if before != after:
        gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
        kind = f"without {sorted(gone.elements())}, with {sorted(new.elements())}" if gone or new else "another order"
        yield f"{what}: {kind}: {before} became {after}"
        return
    for one, other in zip(was, found, strict=True):
        if _encode(one) == _encode(other):
            continue
        for name in one.__struct_fields__:
            if _encode(getattr(one, name)) != _encode(getattr(other, name)):
                yield f"{what}: {type(one).__name__}.{name}"


Decide = Callable[[RunState, m.Input, m.Now], Any]


def compare(folder: Path, decide: Decide) -> tuple[int, Counter[str], dict[str, Record]]:
    """Replay every record of the folder: how many, how often each kind of difference, and its first record."""
    counted, examples, count = Counter[str](), dict[str, Record](), 0
    for path in sorted(folder.glob("*.zst")):
        for record in records(path):
            count += 1
            for name in set(differences(record, outcome_of(decide(record.state, record.given, record.now)))):
                counted[name] += 1
                examples.setdefault(name, record)
    return count, counted, examples


def outcome_of(decided: Any) -> Outcome:
    """The part of a decision that is compared."""
    return Outcome(decided.events, decided.effects, decided.answer)


def keep(folder: Path, decide: Decide) -> int:
    """Write some decisions of every kind, as they come out now; return how many."""
    seen, recorder = Counter[Any](), Recorder(KEPT, level=19, plain_steps_each=1)
    for path in sorted(folder.glob("*.zst")):
        for record in records(path):
            outcome = outcome_of(decide(record.state, record.given, record.now))
            kind = (_what(record), tuple(map(st.event_name, outcome.events)), tuple(map(type, outcome.effects)))
            seen[kind] += 1
            if seen[kind] <= _OF_A_KIND:
                recorder.add(Record(record.state, record.given, record.now, outcome))
    recorder.close()
    return sum(min(count, _OF_A_KIND) for count in seen.values())


def main() -> None:
    """Print the differences between recorded decisions and the present code, or keep some of them."""
    from tolariad.core.rules.table.decide import decide

    if "--keep" in sys.argv:
        print(f"{keep(Path(sys.argv[1]), decide)} decisions, {KEPT.stat().st_size} bytes")
        return
    count, counted, examples = compare(Path(sys.argv[1]), decide)
    print(f"{count} decisions")
    for name, times in counted.most_common():
        example = examples[name]
        print(f"{times:6d}  {name}\n          e.g. {_short(example)}")


def _short(record: Record) -> str:
    return f"{_what(record)} in {record.state.run.phase.value} at event {record.state.seq}"


def _what(record: Record) -> str:
    """The type of the input or report."""
    given = record.given.report if isinstance(record.given, m.ReportReceived) else record.given
    return type(given).__name__


def folder() -> Path | None:
    """Where records are asked for."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else None


if __name__ == "__main__":
    main()
