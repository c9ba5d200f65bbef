"""The events that a query yields, their order, and its cost."""

from __future__ import annotations

import re

import msgspec
import pytest

import journal
from journal.reader import Reader
from tests.control.fakes import START_NS
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.messages.vocabulary import encode_event
from tolariad.forensics import timeline
from tolariad.forensics.positions import JournalPosition, PositionKind
from tolariad.forensics.timeline import Query


def kinds(entries):
    return [timeline.brief(entry.event).type for entry in entries]


def seqs(entries):
    return [entry.seq for entry in entries]


def test_forwards_gives_everything_in_order(recorder, reader):
    """A query without conditions leaves nothing out."""
    assert seqs(timeline.forwards(reader, Query())) == list(range(1, recorder.state.seq + 1))


def test_backwards_is_forwards_reversed(recorder, reader):
    """The same across pages and segments, with and without conditions."""
    for query in (
        Query(),
        Query(types=("StepCompleted",)),
        Query(since=JournalPosition(PositionKind.STEP, 4), until=JournalPosition(PositionKind.STEP, 17)),
    ):
        assert seqs(timeline.backwards(reader, query)) == seqs(timeline.forwards(reader, query))[::-1]


@pytest.mark.parametrize("count", [0, 1, 5, 40, 10_000])
def test_the_last_few_are_the_end_of_all(count, reader):
    """The same with and without a condition."""
    for query in (Query(), Query(types=("Step",))):
        every = seqs(timeline.forwards(reader, query))
        assert seqs(timeline.last_events(reader, query, count)) == (every[-count:] if count else [])


def test_types_are_beginnings_of_names(reader):
    """`-t Checkpoint` finds all types that begin with it."""
    found = set(kinds(timeline.forwards(reader, Query(types=("Checkpoint", "RunP")))))

    assert found == {"CheckpointBegun", "CheckpointCommitted", "RunPaused"}


def test_a_pattern_is_searched_in_names_and_values(reader):
    """The pattern also matches the actor's reason."""
    found = list(timeline.forwards(reader, Query(pattern=re.compile("LUNCH", re.IGNORECASE))))

    assert kinds(found) == ["PauseRequested"]


def test_since_and_until_a_step_hold_that_step(reader):
    """`--since step:4 --until step:6` shows steps 4, 5 and 6."""
    query = Query(
        types=("StepCompleted",),
        since=JournalPosition(PositionKind.STEP, 4),
        until=JournalPosition(PositionKind.STEP, 6),
    )

    assert [timeline.brief(entry.event).step for entry in timeline.forwards(reader, query)] == [4, 5, 6]


def test_since_an_epoch_begins_with_its_first_event(reader):
    """EpochStarted of that epoch is the first one shown."""
    first = next(timeline.forwards(reader, Query(since=JournalPosition(PositionKind.EPOCH, 2))))

    assert timeline.brief(first.event).type == "EpochStarted"
    assert timeline.brief(first.event).epoch == 2


def test_a_place_after_the_end_gives_nothing(reader):
    """It is not an error: the answer is empty."""
    for position in (
        JournalPosition(PositionKind.SEQ, 10_000),
        JournalPosition(PositionKind.STEP, 10_000),
        JournalPosition(PositionKind.TIME, START_NS * 2),
    ):
        assert list(timeline.forwards(reader, Query(since=position))) == []


def test_times_bound_a_query(recorder, reader):
    """Events from a time on and events up to it; together they are all events."""
    middle = JournalPosition(PositionKind.TIME, START_NS + (recorder.mono + 1_000_000_000) // 2)
    before = seqs(timeline.forwards(reader, Query(until=middle)))
    after = seqs(timeline.forwards(reader, Query(since=JournalPosition(PositionKind.TIME, middle.value + 1))))

    assert before
    assert after
    assert before + after == list(range(1, recorder.state.seq + 1))


def test_following_shows_what_comes_and_nothing_twice(recorder, reader):
    """An event that is recorded while the reader waits is shown next."""
    waits = []

    def sleep(_):
        waits.append(1)
        recorder.step()

    last = recorder.state.seq
    events = timeline.follow(reader, Query(types=("StepCompleted",)), last - 1, sleep)
    found = [next(events).seq for _ in range(4)]

    assert found == sorted(set(found))
    assert found[0] >= last
    assert waits


def test_lineage_leaves_out_steps_a_rollback_has_abandoned(run_dir):
    """Steps 4 and 5 were run on branch 0 and again on branch 1: the first ones are left out."""
    with journal.Journal.open(run_dir / "journal", segment_bytes=128 * 1024) as writer:
        writer.begin(
            run_id=bytes(16), context_hash=bytes(32), boot_id=bytes(16), capture=lambda: b"\xc0", wall_ns=START_NS
        )
        taken = [(0, n) for n in range(1, 6)] + [(1, n) for n in range(4, 8)]
        events = [
            encode_event(
                m.StepCompleted(step=n, epoch=1, batch=n, loss=1.0, grad_norm=1.0, lr=0.1, rates=1, branch=branch)
            )
            for branch, n in taken
        ]
        writer.commit(events, epoch=1, step=7, wall_ns=START_NS, mono_ns=1)
    with Reader(run_dir / "journal") as reader:
        living = [timeline.brief(entry.event) for entry in timeline.forwards(reader, Query(lineage=True))]

    assert [(one.branch, one.step) for one in living] == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6), (1, 7)]


def test_an_event_of_a_newer_version_is_shown_like_any_other(run_dir):
    """Unknown types and fields pass through every query."""
    with journal.Journal.open(run_dir / "journal", segment_bytes=128 * 1024) as writer:
        writer.begin(
            run_id=bytes(16), context_hash=bytes(32), boot_id=bytes(16), capture=lambda: b"\xc0", wall_ns=START_NS
        )
        future = msgspec.msgpack.encode({"type": "MoonPhased", "wall": START_NS, "moon": {"phase": [1, b"\x02"]}})
        writer.commit([future], epoch=0, step=0, wall_ns=START_NS, mono_ns=1)
    with Reader(run_dir / "journal") as reader:
        (entry,) = timeline.forwards(reader, Query(types=("Moon",), pattern=re.compile("phase")))

    assert timeline.decode_fields(entry.event)["moon"] == {"phase": [1, b"\x02"]}


def test_a_slot_is_a_name_or_a_number():
    """Seeds have names for their slots, and snapshots numbers; both stand in one journal."""
    seed = timeline.brief(encode_event(m.OrderGiven(order=m.MoveSeed(slot="3", stage=Stage.CULLED))))
    snapshot = timeline.brief(encode_event(m.SnapshotBegun(id="s1", slot=3)))

    assert seed.is_of("OrderGiven:MoveSeed:3")
    assert seed.is_of("OrderGiven:MoveSeed")
    assert seed.is_of("OrderGiven")
    assert not seed.is_of("OrderGiven:MoveSeed:4")
    assert not seed.is_of("OrderGiven:SetRate")
    assert not snapshot.is_of("OrderGiven:MoveSeed:3")
    assert snapshot.is_of("SnapshotBegun")
