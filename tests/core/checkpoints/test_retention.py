"""Which checkpoints go, and that the journal says so before and after."""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec.structs import replace

from tests.core.simulate import World, find, tick_until, until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.engine import At
from tolariad.core.rules import checkpoints
from tolariad.core.state.run_state import RunState

DAY = 86_400 * 10**9
NOW = 100 * DAY


def entry(number, *, days=0.0, size=10, **more):
    place = {
        "reason": m.CheckpointReason.START if number == 0 else m.CheckpointReason.EPOCH,
        "step": number,
        "epoch": 1,
        "batch": 0,
        "branch": 0,
        "begun_seq": number,
        "committed_seq": number,
    }
    return st.CatalogueEntry(
        id=f"c{number:06d}", manifest="", size=size, wall=int(NOW - days * DAY), **{**place, **more}
    )


def retained(state, wall):
    """The events of a start at this time."""
    opened = m.Opened(mode=m.StartMode.EXPLICIT, facts=())
    return checkpoints.retain(state, opened, At(m.Now(wall, 1), state)).events


def gone(*entries, best="", removing=(), **policy):
    held = st.Checkpoints(catalogue=entries, best=best, removing=removing)
    return [(int(one.entry.id[1:]), one.why) for one in q.retention_plan(held, m.Policy(epochs=1, **policy), NOW)]


def test_the_old_go_but_never_the_first_the_best_the_promoted_and_the_last_good():
    """Seven days; the first three kinds stay for ever, of the last good ones as many as is asked for."""
    many = [entry(n, days=20 - n, promoted=n in (3, 4)) for n in range(16)]
    found = gone(*many, best="c000002", keep_last=2)
    assert [number for number, _ in found] == [1, 3, *range(5, 14)]
    assert found[0][1] == "it is older than 7 days"
    assert [number for number, _ in gone(*many, best="c000002", keep_last=2, keep_days=13)] == [1, 3, 5, 6, 7]


@pytest.mark.parametrize(("fallen", "left"), [(0, [1, 2, 3]), (1, [1, 3])])
def test_what_a_collapse_would_go_back_to_stays_until_the_next_validation(fallen, left):
    """The newest one at or before the last sound validation; the quota takes it as soon as that is settled."""
    catalogue = tuple(entry(n) for n in range(5))
    state = replace(
        RunState(),
        checkpoints=st.Checkpoints(catalogue=catalogue),
        instability=st.Instability(fallen=fallen, sound_step=2),
        run=replace(RunState().run, policy=m.Policy(epochs=1, quota=1, keep_last=1)),
    )
    begun = [one for one in retained(state, NOW) if isinstance(one, m.CheckpointDeletionBegun)]

    assert [int(one.id[1:]) for one in begun] == left


def test_the_quota_takes_the_abandoned_first_then_the_oldest():
    """As many as it needs, no more; what is pinned is not counted on."""
    many = [entry(n, rejected=n == 4, abandoned=n in (6, 7)) for n in range(12)]
    assert gone(*many, quota=120) == []
    assert [number for number, _ in gone(*many, quota=90)] == [6, 7, 4]
    assert [number for number, _ in gone(*many, quota=70)] == [6, 7, 4, 1, 2]
    assert [number for number, _ in gone(*many, quota=1)] == [6, 7, 4, 1, 2, 3, 5, 8]


@pytest.mark.parametrize("apart", [1, 7])
def test_of_many_at_most_keep_stay_spread_evenly_over_the_run(apart):
    """After each of 160 checkpoints: those that must stay, and `keep` others. No gap is much wider than another."""
    there: list[st.CatalogueEntry] = []
    for number in range(160):
        there.append(entry(number, step=number * apart))
        held = st.Checkpoints(catalogue=tuple(there))
        going = {one.entry.id: one.why for one in q.retention_plan(held, m.Policy(epochs=1, keep=20), NOW)}
        there = [one for one in there if one.id not in going]
        pins = q.pinned_checkpoints(st.Checkpoints(catalogue=tuple(there)), 3)
        assert len(there) == min(number + 1, 20 + len(pins))
        assert set(going.values()) <= {"there are more than 20 beside those that must stay"}

    steps = [one.step for one in there]
    gaps = [after - before for before, after in itertools.pairwise(steps[:-2])]
    assert steps[0] == 0
    assert steps[-1] == 159 * apart
    assert max(gaps) <= 3 * min(gaps)


def test_unusable_ones_go_before_those_that_are_spread_and_ordered_ones_last():
    """An ordered checkpoint is one that somebody wanted. Pinned ones do not count; of a backlog 16 go at once."""
    ordered = {n: {"reason": m.CheckpointReason.ORDERED} for n in (2, 3)}
    many = [entry(n, abandoned=n in (6, 7), **ordered.get(n, {})) for n in range(12)]

    assert [number for number, _ in gone(*many, keep=6)] == [6, 7]
    assert [number for number, _ in gone(*many, keep=2, keep_last=3)] == [6, 7, 1, 4, 8, 5]
    assert gone(*many) == []
    assert len(gone(*map(entry, range(900)), keep=20)) == q.REMOVALS_AT_ONCE


def test_the_newest_good_ones_stay_though_a_start_cannot_use_them_and_so_do_those_it_can():
    """Of both kinds as many as are asked for; over the quota and far too old."""
    many = [entry(n, days=30, unfit_context="grown" if n > 5 else "") for n in range(10)]
    assert [number for number, _ in gone(*many, keep_last=2, quota=1)] == [1, 2, 3, 6, 7]


def test_whatever_is_drawn_there_is_always_one_to_start_from(seed):
    """The newest usable one is never among those that go, nor is anything that stands in the pins."""
    draw = random.Random(seed)
    for _ in range(300):
        many = tuple(
            entry(
                n,
                days=draw.uniform(0, 40),
                size=draw.randrange(1, 50),
                **{flag: draw.random() < 0.2 for flag in ("rejected", "abandoned", "promoted", "condemned", "reduced")},
            )
            for n in range(draw.randrange(1, 12))
        )
        held = st.Checkpoints(catalogue=many, best=draw.choice(many).id)
        policy = m.Policy(epochs=1, keep_last=draw.randrange(1, 4), quota=draw.randrange(1, 300))
        going = {one.entry.id for one in q.retention_plan(held, policy, NOW)}
        assert not going & set(q.pinned_checkpoints(held, policy.keep_last)), (seed, held)
        assert held.newest is None or held.newest.id not in going
        left = sum(one.size for one in many if one.id not in going)
        pinned = sum(one.size for one in many if one.id in q.pinned_checkpoints(held, policy.keep_last))
        assert left <= policy.quota or left == pinned, (seed, held)


def test_what_a_rollback_is_on_its_way_to_stays_until_it_is_there():
    """Older than it may be and over the quota; an ordered one that waits for a re-run's end counts too."""
    many = tuple(entry(n, days=30.0) for n in range(6))
    held, policy = st.Checkpoints(catalogue=many), m.Policy(epochs=1, quota=1)
    state = RunState()
    state = replace(state, checkpoints=held, run=replace(state.run, policy=policy))
    begun = st.OpenRollback("r0001", many[1].id, m.Tier.FULL, m.Cause(5, 5))
    asked = st.WaitingRollback(many[2].id, m.Tier.FULL, "", m.Cause(6, 6))
    wanted = replace(state, rollbacks=replace(state.rollbacks, open=begun, asked=asked))

    def going(state):
        events = retained(state, NOW)
        return {event.id for event in events if isinstance(event, m.CheckpointDeletionBegun)}

    assert going(state) - going(wanted) == {many[1].id, many[2].id}


def going_of(catalogue, wall):
    """The numbers of those whose removal a run of this catalogue begins at that time."""
    state = RunState()
    state = replace(
        state, checkpoints=st.Checkpoints(catalogue=catalogue), run=replace(state.run, policy=m.Policy(epochs=1))
    )
    events = retained(state, wall)
    return [int(event.id[1:]) for event in events if isinstance(event, m.CheckpointDeletionBegun)]


@pytest.mark.parametrize("leap_days", [8, 365, 36_500])
def test_a_clock_that_leaps_forward_does_not_make_all_checkpoints_old(leap_days):
    """No checkpoint becomes too old: not when a daemon opens the run, and not when the clock is set right again."""
    many = tuple(entry(n, days=(20 - n) / 100) for n in range(20))
    leapt = NOW + leap_days * DAY
    behind = tuple(entry(n, days=-leap_days) for n in range(20, 25))
    right = tuple(entry(n, days=-n / 100) for n in range(25, 30))

    assert going_of(many, leapt) == []
    assert going_of(many + behind, leapt) == []
    assert going_of(many + behind + right, NOW + DAY // 2) == []


def test_what_is_old_by_the_checkpoints_that_came_since_goes_though_the_clock_leapt():
    """A leap counts for one of seven days; without one the days are those of the clock."""
    many = tuple(entry(n, days=10 - n / 4) for n in range(41))
    after_leap = tuple(replace(one, wall=one.wall + (50 * DAY if n > 20 else 0)) for n, one in enumerate(many))

    assert going_of(many, NOW) == list(range(1, 13))
    assert going_of(after_leap, NOW + 50 * DAY) == list(range(1, 16))


def test_a_removal_that_failed_is_begun_again_and_one_under_way_is_not():
    """Until it is gone it is never a starting point."""
    rest = [entry(n) for n in (90, 91, 92)]
    half = entry(1, condemned=True)
    assert gone(half, *rest) == [(1, "its removal was begun")]
    assert gone(half, *rest, removing=(st.Removing("c000001", m.Cause(5, 5)),)) == []
    assert st.Checkpoints(catalogue=(half,)).newest is None


def test_more_than_the_quota_in_what_must_stay_is_said_once_and_taken_back():
    """StorageExhausted, and no second one while it lasts; StorageRelieved when it fits again."""
    state = RunState()
    held = st.Checkpoints(catalogue=tuple(entry(n) for n in range(3)))
    full = replace(state, checkpoints=held, run=replace(state.run, policy=m.Policy(epochs=1, quota=25)))
    (event,) = retained(full, NOW)
    assert event == m.StorageExhausted(used=30, quota=25)
    again = replace(full, checkpoints=replace(held, exhausted=True))
    assert retained(again, NOW) == ()
    wide = replace(again, run=replace(again.run, policy=m.Policy(epochs=1, quota=30)))
    assert retained(wide, NOW) == (m.StorageRelieved(used=30, quota=30),)


def test_a_run_with_a_small_quota_removes_as_it_goes_and_every_removal_has_its_end():
    """Intent before, effect after; what is left at the end is what is pinned."""
    world = World(3, quota=35, keep_last=2, checkpoint_gap_s=0.0, checkpoint_every_epochs=1)
    world.run()
    begun, ended = find(world, m.CheckpointDeletionBegun), find(world, m.CheckpointDeleted)
    assert begun
    assert [one.id for one in begun] == [one.id for one in ended]
    assert {one.id for one in begun}.isdisjoint(one.id for one in world.state.checkpoints.catalogue)
    assert world.state.checkpoints.removed == len(ended)


def test_the_end_of_the_daemon_ends_a_removal_which_the_next_begins_again():
    """It is owed one end; the checkpoint stays condemned until it is gone."""
    world = World(3, quota=35, keep_last=1, checkpoint_gap_s=0.0, checkpoint_every_epochs=1)
    for _ in range(2000):
        if world.state.checkpoints.removing:
            break
        world.tick()
    (open_one,) = world.state.checkpoints.removing
    world.restart_daemon()
    aborted = find(world, m.CheckpointDeletionAborted)
    assert [(one.id, one.why) for one in aborted] == [(open_one.id, "the daemon ended")]
    assert [one.id for one in find(world, m.CheckpointDeletionBegun)].count(open_one.id) == 2
    world.give(m.CheckpointRemoved(id=open_one.id, error="it is being read"))
    assert find(world, m.CheckpointDeletionAborted)[-1].why == "it is being read"


@pytest.mark.parametrize("who", ["trainer", "daemon"])
def test_what_a_dead_trainer_left_of_a_checkpoint_is_swept_at_once_and_nothing_that_was_committed(who):
    """Half written or whole, it was never committed: begun, then aborted, then on nobody's list."""
    world, effects = until(World(0), 6), []
    world.command(m.Checkpoint())
    (begun,) = world.state.checkpoints.open
    plain = world._do
    world._do = lambda effect: (effects.append(effect), plain(effect))
    world.crash_trainer() if who == "trainer" else world.restart_daemon()
    tick_until(world, lambda: not world.state.checkpoints.open, "the end it is owed")
    (order,) = [one for one in effects if isinstance(one, m.SweepCheckpoints)]

    assert find(world, m.CheckpointAborted)[-1].id == begun.id
    assert set(order.committed) == {one.id for one in world.state.checkpoints.catalogue}
    assert begun.id not in order.committed
    assert int(begun.id[1:]) <= order.highest
