"""Journals that no run has written, drawn from a seed: real events with impossible fields, unknown types, no maps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from journal import FrameKind, Journal, Tabulation
from tests.extremes import extremes_of
from tests.journal.make import begin
from tests.recorded import events_in
from tolariad.core.calc.steps.table import METRIC, STEP_COLUMNS, step_row
from tolariad.core.messages.vocabulary import EVENT_TYPES, encode_event
from tolariad.core.state.run_state import FOLD_VERSION

SEGMENT = 1 << 20
HUGE = 1.5e308
CONTROLS = "a\x1b[2Jb\x1b]0;title\x07\r\x9b31m\x00\u202e\u2028\nevil: line"
NAMES = (
    "id",
    "step",
    "epoch",
    "branch",
    "cause",
    "root",
    "slot",
    "reason",
    "finding",
    "checkpoint",
    "verified",
    "actor",
)


def nested(depth: int) -> Any:
    """Return lists within each other."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


NUMBERS = (
    0,
    -1,
    2**31,
    2**53,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    HUGE,
    -HUGE,
    math.nan,
    math.inf,
    -math.inf,
    5e-324,
    True,
)
VALUES = (
    *NUMBERS,
    *("", "x" * 10**6, CONTROLS, "1e400", "../../../../etc/passwd", "/", ".", "9" * 5000, "seq:1", "{}", '{"a": 1}'),
    *(None, [], {}, b"", b"\xff\xfe", bytes(300), [1, "a", None], {"a": {"b": [CONTROLS]}}, {CONTROLS: CONTROLS}),
    *({1: 2, None: 3}, {"rate": "x", "group": 5}, {"rate": HUGE}, {"uid": "root", "program": CONTROLS, "reason": 7}),
    *(nested(70), nested(300), {"a": nested(63)}, msgspec.msgpack.Ext(5, b"abc"), [{"x": CONTROLS}, 5]),
)
# Not even msgpack with text in UTF-8, or deeper than any reader goes.
RAW = (b"\xc0", b"\x07", b"\x93\x01\x02\x03", b"\x81\xa1\xff\x01", b"\x81\xa4type\xa1\xff", b"\x81\x01\x02", b"\xa3abc",
       b"\x81\xa4type" + b"\x91" * 5000 + b"\xc0", b"\x80", b"\x82\xa4type\xa4Note\xa4type\x05")  # fmt: skip


def real_events(run: Path) -> list[dict[str, Any]]:
    """Return the events of a run as maps."""
    return [msgspec.msgpack.decode(encode_event(event)) for event in events_in(run / "journal")]


class Drawing:
    """What one seed draws."""

    def __init__(self, seed: str, real: list[dict[str, Any]]) -> None:
        self.random = random.Random(seed)
        self.real = real

    def _changed(self, event: dict[str, Any]) -> None:
        for _ in range(self.random.choice([1, 1, 2, 5])):
            names = [*event, *NAMES]
            name = self.random.choice(names)
            if self.random.random() < 0.2:
                event.pop(name, None)
            else:
                event[name] = self.random.choice(VALUES)

    def _unknown(self, event: dict[str, Any]) -> None:
        event["type"] = self.random.choice(["OfTomorrow", CONTROLS, "", "x" * 10**6, "StepCompletedLater"])
        event["skippable"] = self.random.choice([True, False, 1, "yes"])
        self._changed(event)

    def _extreme(self, event: dict[str, Any]) -> None:
        kind = self.random.choice(list(EVENT_TYPES.values()))
        found = extremes_of(kind, self.random.sample(NUMBERS, 3))
        event.clear()
        event.update(self.random.choice(found)[1] if found else {"type": kind.__name__})
        event.setdefault("wall", 1)

    def events(self) -> list[bytes]:
        """Return encoded events: mostly the real ones, in order, some of them changed."""
        share = self.random.choice([0.02, 0.1, 0.5])
        changes: list[Callable[[dict[str, Any]], None]] = [self._changed, self._unknown, self._extreme]
        encoded = []
        for one in self.real:
            event = dict(one)
            if self.random.random() < share:
                self.random.choice(changes)(event)
            encoded.append(self._encoded(event))
            if self.random.random() < share / 4:
                encoded.append(self.random.choice(RAW))
        if self.random.random() < 0.2:
            self.random.shuffle(encoded)
        return encoded[: self.random.choice([0, 1, len(encoded), len(encoded), len(encoded)])]

    def _encoded(self, event: dict[str, Any]) -> bytes:
        try:
            return msgspec.msgpack.encode(event)
        except (OverflowError, UnicodeEncodeError, RecursionError):
            return msgspec.msgpack.encode({"type": "Note", "text": "not encodable"})

    def capture(self) -> bytes:
        """Return the body of a capture that is none, or is one of a state with a hole."""
        bodies: list[Any] = [
            None,
            5,
            {"fold_version": FOLD_VERSION},
            {"fold_version": FOLD_VERSION, "state": {"seq": 3}},
        ]
        return msgspec.msgpack.encode(self.random.choice(bodies))


def make(folder: Path, seed: str, real: list[dict[str, Any]]) -> Path:
    """Write the run of a seed into a new folder, and return it."""
    drawing = Drawing(seed, real)
    labels = [0, 1, 5, 2**40, 2**62]
    with begin(Journal.open(folder / "journal", segment_bytes=SEGMENT, tabulation=_table(drawing))) as journal:
        for event in drawing.events():
            try:
                journal.commit([event], epoch=drawing.random.choice(labels), step=drawing.random.choice(labels),
                               wall_ns=drawing.random.choice([1, 10**18, 2**62]), mono_ns=1)  # fmt: skip
            except ValueError:
                continue  # the journal takes no such event
            if drawing.random.random() < 0.02:
                kind = drawing.random.choice([FrameKind.CAPTURE, FrameKind.STATE_HASH])
                journal.mark(kind, drawing.capture(), wall_ns=1, mono_ns=1)
    return folder


def _table(drawing: Drawing) -> Tabulation | None:
    return drawing.random.choice([None, Tabulation(STEP_COLUMNS, step_row, METRIC)])
