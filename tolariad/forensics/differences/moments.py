"""What changed in one run between two moments, and which events did it.

Promises: every field of the state that differs is listed, with the last event that changed it. A field that changed and
changed back is not listed; the events between the moments are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from journal.reader import Reader
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import Unknown, decode_event
from tolariad.core.state.replay import unfoldable
from tolariad.core.state.run_state import RunState, apply
from tolariad.forensics.differences.contexts import Differing, context_of, differing
from tolariad.forensics.moment import state_at
from tolariad.forensics.timeline import up_to

# They measure, or repeat in another form what other fields say.
_LEFT_OUT: Final = frozenset(
    {
        *("progress.last_mono", "progress.last_wall", "progress.speed", "progress.digest", "progress.epoch_mono"),
        *("progress.epoch_loss_sum", "progress.measured", "run.config", "run.policy", "progress.code", "overruns"),
        *("progress.environment", "boundary.digest", "said", "copies", "control"),
    }
)
# The endings of the names of measured times.
_TIMES: Final = ("_mono", "_ns", "_s", ".seconds")
_SLICES: Final = tuple(name for name in RunState.__struct_fields__ if name != "seq")


class Changed(msgspec.Struct, frozen=True):
    """A field of the state, its values at both moments, and the last event that changed it."""

    name: str
    a: Any
    b: Any
    seq: int


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """What happened after event `first` up to event `last`. `steps`: how many were made; `types`: events by type.

    `events`: the sequence numbers of the events that changed a listed field, without steps.
    """

    first: int
    last: int
    steps: int
    types: dict[str, int]
    context: tuple[Differing, ...]
    changed: tuple[Changed, ...]
    events: tuple[int, ...]


def between(reader: Reader, first: int, last: int, progress: Callable[[int], None] = lambda _: None) -> Between:
    """Compare the states after events `first` and `last`. `progress` is called with sequence numbers.

    Raises JournalError, ReplayError.
    """
    before = state = state_at(reader, first).state
    types: Counter[str] = Counter()
    by: dict[tuple[str, str], int] = {}
    steps: set[int] = set()
    for entry in up_to(reader.seek(seq=first + 1), last):
        try:
            event = decode_event(entry.event)
            after = apply(state, event)
        except Exception as error:
            raise unfoldable(f"event {entry.seq}", error) from error
        types[event.type if isinstance(event, Unknown) else type(event).__name__] += 1
        if isinstance(event, m.StepCompleted):
            steps.add(entry.seq)
        for field in _changes(state, after):
            by[field] = entry.seq
        state = after
        if entry.seq % 4096 == 0:
            progress(entry.seq)
    changed = tuple(_changed(before, state, by))
    return Between(
        first=first,
        last=last,
        steps=len(steps),
        types=dict(types.most_common()),
        context=tuple(differing(context_of(reader, before), context_of(reader, state))),
        changed=changed,
        events=tuple(sorted({one.seq for one in changed} - steps)),
    )


def _changes(before: RunState, after: RunState) -> list[tuple[str, str]]:
    """Return the fields that are other objects after an event. Equal ones are sorted out at the end."""
    found = []
    for name in _SLICES:
        one, other = getattr(before, name), getattr(after, name)
        if one is not other:
            fields = one.__struct_fields__
            found += [(name, field) for field in fields if getattr(one, field) is not getattr(other, field)]
    return found


def _changed(before: RunState, after: RunState, by: dict[tuple[str, str], int]) -> list[Changed]:
    found = []
    for (part, field), seq in by.items():
        one, other = getattr(getattr(before, part), field), getattr(getattr(after, part), field)
        name = f"{part}.{field}"
        if one != other and not (_LEFT_OUT & {part, name} or name.endswith(_TIMES)):
            values = [msgspec.to_builtins(each, builtin_types=(bytes,)) for each in (one, other)]
            found.append(Changed(name, values[0], values[1], seq))
    order = {name: place for place, name in enumerate(_SLICES)}
    return sorted(found, key=lambda one: (order[one.name.partition(".")[0]], one.name))
