"""Journals with given events: those of a run, and copies of it with one event changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from journal import Journal, Reader
from tests.control.fakes import Recorder
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import decode_event, encode_event
from tolariad.core.state.run_state import RunState, apply, capture

_EVENTS_A_FRAME = 64


def events_of_a_run(folder: Path, steps: int = 30) -> list[m.Event]:
    """Record a run of so many steps, and return its events."""
    made = Recorder(folder)
    made.begin_run(epochs=1 + steps // 10)
    for _ in range(steps):
        made.step()
    made.journal.close()
    with Reader(folder) as reader:
        return [decode_event(entry.event) for entry in reader]


def write(folder: Path, events: Sequence[m.Event], *, segment_bytes: int = 64 * 1024) -> Path:
    """Write a journal with these events; each of its segments begins with a capture."""
    state = RunState()
    with Journal.open(folder, segment_bytes=segment_bytes) as journal:
        journal.begin(
            run_id=bytes(range(16)),
            context_hash=bytes(32),
            capture=lambda: capture(state),
            wall_ns=1,
            boot_id=bytes(16),
        )
        for start in range(0, len(events), _EVENTS_A_FRAME):
            batch = events[start : start + _EVENTS_A_FRAME]
            after = state
            for event in batch:
                after = apply(after, event)
            place = after.progress
            raw = [encode_event(event) for event in batch]
            journal.commit(raw, epoch=place.epoch, step=place.step, wall_ns=start + 1, mono_ns=start + 1)
            state = after
    return folder


def step_at(events: Sequence[m.Event], step: int) -> int:
    """Return the index of the record of a step."""
    return next(n for n, one in enumerate(events) if isinstance(one, m.StepCompleted) and one.step == step)


def with_step(events: Sequence[m.Event], step: int, **values: object) -> list[m.Event]:
    """Return the events with other values in the record of one step."""
    at = step_at(events, step)
    return [*events[:at], msgspec.structs.replace(events[at], **values), *events[at + 1 :]]
