"""After a rollback the journal has both attempts at a step; a position says which one is meant."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime

import pytest

from journal import FrameKind, Journal, Reader
from tests.core.simulate import World, find, until
from tests.forensics.differences.written import write
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import decode_event, encode_event
from tolariad.core.state.run_state import RunState, apply, capture
from tolariad.forensics import moment
from tolariad.forensics.moment import NoSuchStep, end_of, seq_at, state_at
from tolariad.forensics.positions import BadPosition, JournalPosition, PositionKind, parse_position
from tolariad.forensics.timeline import Query, brief, forwards


@pytest.fixture
def went_back(tmp_path):
    """Return a reader of a run that went from step 10 back to 4, and trained to its end on branch 1."""
    world = until(World(0), 10)
    world.command(m.Rollback(epoch=1))
    world.run()
    assert len(find(world, m.RolledBack)) == 1
    state = RunState()
    with Journal.open(tmp_path / "journal", segment_bytes=65_536) as journal:
        journal.begin(
            run_id=bytes(16), context_hash=bytes(32), capture=lambda: capture(state), wall_ns=1, boot_id=bytes(16)
        )
        for event in world.events:
            after = apply(state, event)
            at = after.progress
            journal.commit([encode_event(event)], epoch=at.epoch, step=at.step, wall_ns=event.wall, mono_ns=event.mono)
            state = after
    with Reader(tmp_path / "journal") as reader:
        yield reader


def completed(reader: Reader, seq: int) -> tuple[int, int]:
    """Return branch and step of the event with this number."""
    reader.seek(seq=seq)
    event = decode_event(next(iter(reader)).event)
    assert isinstance(event, m.StepCompleted)
    return event.branch, event.step


@pytest.mark.parametrize(
    ("branch", "step", "meant"), [(None, 3, (0, 3)), (None, 6, (1, 6)), (0, 6, (0, 6)), (1, 6, (1, 6)), (0, 2, (0, 2))]
)
def test_a_step_alone_is_that_of_the_living_line_and_a_branch_names_the_other(went_back, branch, step, meant):
    """Before the fork there is one of each step; after it, two."""
    seq = seq_at(went_back, JournalPosition(PositionKind.STEP, step, branch))

    assert completed(went_back, seq) == meant
    assert state_at(went_back, seq).state.progress.step == step


def test_a_step_that_its_branch_never_had_is_said_to_be_missing(went_back):
    """Branch 1 begins after step 4, branch 0 ends at 10, there is no branch 7."""
    for branch, step in ((1, 3), (0, 11), (7, 5)):
        with pytest.raises(NoSuchStep, match=f"branch {branch} has no step {step}"):
            seq_at(went_back, JournalPosition(PositionKind.STEP, step, branch))


def test_the_lineage_leaves_out_what_was_abandoned(went_back):
    """Each step of the lineage once, in order."""
    events = [decode_event(entry.event) for entry in forwards(went_back, Query(lineage=True))]

    assert [e.step for e in events if isinstance(e, m.StepCompleted)] == list(range(1, 13))


def test_a_branch_is_written_after_the_step():
    """`step:6@1` is accepted; a branch for anything but a step is not."""
    now = datetime(2026, 11, 21, tzinfo=UTC)

    assert parse_position("step:6@1", now) == JournalPosition(PositionKind.STEP, 6, 1)
    assert parse_position("step:6", now) == JournalPosition(PositionKind.STEP, 6)
    with pytest.raises(BadPosition):
        parse_position("seq:6@1", now)


def made(branch: int, first: int, last: int) -> list[m.Event]:
    """The steps of a branch, with another event after every hundredth."""
    found: list[m.Event] = []
    for step in range(first, last + 1):
        at = {"step": step, "epoch": 1, "batch": step, "branch": branch}
        found.append(m.StepCompleted(**at, loss=1.0, grad_norm=1.0, lr=0.1, rates=1))
        if step % 100 == 0:
            found.append(m.NoteAdded(text="so far"))
    return found


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """Return a reader of a run of three branches with thousands of steps."""
    went_back = [
        m.RolledBack(rollback="r", checkpoint="c", branch=n, parent=n - 1, step=step, epoch=1, batch=step)
        for n, step in ((1, 900), (2, 400))
    ]
    events = [*made(0, 1, 2000), went_back[0], *made(1, 901, 1500), went_back[1], *made(2, 401, 1800)]
    with Reader(write(tmp_path_factory.mktemp("long") / "journal", events)) as reader:
        yield reader


@pytest.mark.parametrize("branch", [0, 1, 2])
@pytest.mark.parametrize("step", [1, 100, 400, 401, 900, 901, 1111, 1500, 1501, 1800, 2000, 2001])
def test_a_step_of_a_long_branch_is_found_by_halving(monkeypatch, long_run, branch, step):
    """Exactly the steps that the branch had are found, and few events are looked at."""
    first, last = ((1, 2000), (901, 1500), (401, 1800))[branch]
    looked_at = []
    monkeypatch.setattr(moment, "brief", lambda event: looked_at.append(event) or brief(event))
    position = JournalPosition(PositionKind.STEP, step, branch)

    if first <= step <= last:
        assert completed(long_run, seq_at(long_run, position)) == (branch, step)
    else:
        with pytest.raises(NoSuchStep):
            seq_at(long_run, position)
    assert len(looked_at) < 500


@pytest.mark.parametrize(("step", "branch"), [(1, 0), (400, 0), (401, 2), (1800, 2)])
def test_a_step_of_the_living_line_of_a_long_run(long_run, step, branch):
    """Branch 1 was left before its first step was reached again."""
    assert completed(long_run, seq_at(long_run, JournalPosition(PositionKind.STEP, step))) == (branch, step)


def written(folder, events, captured):
    """Write a journal whose newest capture is the state after so many of its events."""
    states = [RunState()]
    for event in events:
        states.append(apply(states[-1], event))
    with Journal.open(folder) as journal:
        journal.begin(
            run_id=bytes(16), context_hash=bytes(32), capture=lambda: capture(RunState()), wall_ns=1, boot_id=bytes(16)
        )
        for count, event in enumerate(events, 1):
            at = states[count].progress
            journal.commit([encode_event(event)], epoch=at.epoch, step=at.step, wall_ns=event.wall, mono_ns=event.mono)
            if count == captured:
                journal.mark(FrameKind.CAPTURE, capture(states[count]), wall_ns=event.wall, mono_ns=event.mono)
    return states[-1]


def test_the_end_is_that_of_the_fold(tmp_path):
    """Wherever the newest capture is, and wherever the journal ends: before a rollback, after it, and between."""
    seed = int(os.environ.get("TOLARIA_SEED", random.randrange(1 << 30)))
    print(f"TOLARIA_SEED={seed}")
    rng = random.Random(seed)
    world = until(World(0), 10)
    world.command(m.Rollback(epoch=1))
    world.run()
    back = next(at for at, one in enumerate(world.events, 1) if isinstance(one, m.RolledBack))
    lengths = [back - 1, back, back + 1, back + 2, len(world.events), *rng.choices(range(1, len(world.events)), k=12)]
    for number, length in enumerate(lengths):
        for captured in {0, rng.randrange(length + 1), length, min(length, back - 1), min(length, back)}:
            folder = tmp_path / f"{number}-{captured}"
            state = written(folder, world.events[:length], captured)
            with Reader(folder) as reader:
                found = end_of(reader)
            assert found == (state.seq, state.progress.step, state.rollbacks.branches), (length, captured)


@pytest.mark.parametrize("seed", range(4))
def test_only_a_step_and_a_rollback_say_at_which_step_a_run_is(seed):
    """The end of a run is found by them alone."""
    world = until(World(seed), 10)
    world.command(m.Rollback(epoch=1))
    world.run()
    state, others = RunState(), 0
    for event in world.events:
        after = apply(state, event)
        if not isinstance(event, m.StepCompleted | m.RolledBack):
            assert after.progress.step == state.progress.step, event
            others += 1
        if not isinstance(event, m.RolledBack):
            assert after.rollbacks.branches == state.rollbacks.branches, event
        state = after
    assert others > 20
