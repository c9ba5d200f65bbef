"""Follow a run's journal into an output, until nobody records it any more.

Promises: the journal is only read. Records reach the output in the journal's order, each once. The output keeps the
position; after a kill the next follower goes on there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from journal.reader import Reader
from tolariad.core.messages.vocabulary import decode_event
from tolariad.core.state.replay import ReplayError
from tolariad.core.state.run_state import RunState
from tolariad.followers.records import About, Branch, BranchOf, Record, Translator, about, branch_of
from tolariad.followers.refused import FollowRefused
from tolariad.forensics.moment import state_at

POLL_S: Final = 0.5
# Between two syncs of the output. A sync costs the disk some work, which the run's journal may share.
FLUSH_S: Final = 2.0
_EVENTS_MAX: Final = 50_000


class Output(Protocol):
    """Where records go."""

    # The last event that it holds.
    position: int

    @property
    def words(self) -> str:
        """Return where it is, for people."""

    def put(self, record: Record) -> None:
        """Take the next record."""

    def flush(self, seq: int) -> None:
        """Hold everything up to event `seq`, also if this process is killed now."""

    def close(self) -> None:
        """Release it."""


OpenOutput = Callable[[About, BranchOf], Output]


class Progress(msgspec.Struct, frozen=True):
    """Where the follower is: the last event that the output holds."""

    seq: int
    step: int


class Waits(NamedTuple):
    """When a follower ends, and how it waits. `clock`: seconds."""

    over: Callable[[], bool]
    sleep: Callable[[float], object]
    clock: Callable[[], float]


def follow(
    journal: Path,
    open_output: OpenOutput,
    *,
    over: Callable[[], bool],
    told: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Copy the journal to an output until `over()` is true at its end. Return how far it got.

    `told` gets a sentence about where the output is. Raises JournalError, ReplayError, and what the output raises.
    """
    with Reader(journal) as reader:
        known = _Known(state_at(reader).state)
        output = open_output(about(known.state), known.branch)
        if output.position > known.state.seq:
            # A repair gave up events that the output holds.
            output.close()
            raise FollowRefused(
                f"the output goes to event {output.position}, and the journal ends at {known.state.seq}: it was "
                "repaired, or is another run's. Remove the output, or give another --uri or --project"
            )
        told(output.words)
        try:
            return _copied(reader, output, known, Waits(over, sleep, clock))
        finally:
            output.close()


class _Known:
    """The state by which branches are named: the end of the journal at first, later that of the translator."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.translator: Translator | None = None

    def branch(self, number: int) -> Branch:
        state = self.translator.state if self.translator is not None else self.state
        return branch_of(state, number)


def _copied(reader: Reader, output: Output, known: _Known, waits: Waits) -> Progress:
    begun = output.position
    translator = known.translator = Translator(state_at(reader, begun).state if begun else RunState())
    reader.seek(seq=begun + 1)
    flushed, count = waits.clock(), 0
    while True:
        # Ask first, then read: an event that is recorded between the two is not missed.
        ends = waits.over()
        for entry in reader:
            try:
                event = decode_event(entry.event)
            except (ValueError, RecursionError) as error:
                raise ReplayError(f"event {entry.seq} cannot be read: {error}") from error
            for record in translator.take(event):
                output.put(record)
            count += 1
            if count >= _EVENTS_MAX:
                output.flush(translator.state.seq)
                flushed, count = waits.clock(), 0
        if ends or waits.clock() - flushed >= FLUSH_S:
            output.flush(translator.state.seq)
            flushed, count = waits.clock(), 0
        if ends:
            return Progress(translator.state.seq, translator.state.progress.step)
        waits.sleep(POLL_S)
