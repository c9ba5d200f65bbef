"""Checkpoints are promoted after enough healthy steps, and a rollback that nobody ordered goes to a promoted one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.rollback.test_rollback import rolled_back
from tests.core.simulate import World, find, tick_until, until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict
from tolariad.core.engine import At
from tolariad.core.rules import checkpoints
from tolariad.core.state.run_state import RunState, canonical_bytes, fold

EVERY_EPOCH = {"checkpoint_every_epochs": 1, "checkpoint_gap_s": 0.0}


def promoted(world: World) -> list[int]:
    """The steps of those that are."""
    return [one.step for one in world.state.checkpoints.catalogue if one.promoted]


def steps_at_promotion(world: World) -> dict[str, int]:
    """The last step that was durable when each was promoted."""
    found, step = {}, 0
    for event in world.events:
        step = event.step if isinstance(event, m.StepCompleted) else step
        if isinstance(event, m.CheckpointPromoted):
            found[event.id] = step
    return found


def found_at(world: World, step: int, finding: Finding = Finding.SPIKE) -> None:
    """The detector's word on a step that was made."""
    verdict = Verdict(finding=finding, signal=Signal.LOSS, value=9.0, baseline=1.0, limit=2.0)
    report = m.InstabilityReport(verdict=verdict, step=step, epoch=2, batch=3, first_batch=3, late=True)
    world.give(m.ReportReceived(incarnation=world.state.trainer.incarnation, report=report))


def test_one_is_promoted_so_many_healthy_steps_after_its_own_and_once():
    """The first checkpoint and that of each epoch are promoted, but not the last: no step follows it."""
    world = World(0, snapshot_watch=3, **EVERY_EPOCH)
    world.run()
    catalogue = {one.id: one for one in world.state.checkpoints.catalogue}
    at = steps_at_promotion(world)

    assert {catalogue[id_].step: step for id_, step in at.items()} == {0: 3, 4: 7, 8: 11}
    assert len(find(world, m.CheckpointPromoted)) == 3
    assert promoted(world) == [0, 4, 8]
    assert q.pinned_checkpoints(world.state.checkpoints, 1)[world.state.checkpoints.catalogue[2].id] == "promoted"


def test_what_was_not_healthy_begins_the_watch_anew_but_time_does_not():
    """A spike at step 6: three steps from there; a step that took long says nothing of the weights."""
    world = until(World(0, snapshot_watch=3, **EVERY_EPOCH), 6)
    found_at(world, 6)
    until(world, 8)
    before = promoted(world)
    until(world, 9)
    assert (before, promoted(world)) == ([0], [0, 4])
    stalled = until(World(0, snapshot_watch=3, **EVERY_EPOCH), 6)
    found_at(stalled, 6, Finding.STALL)
    assert promoted(until(stalled, 7)) == [0, 4]


def test_what_was_found_while_it_was_written_counts():
    """Captured at step 4, found at step 6, committed after that."""
    world = until(World(0, snapshot_watch=3), 4)
    world.command(m.Checkpoint())
    world.trainer._obey()
    report = next(one for one in world.trainer.todo if isinstance(one, m.CheckpointWrittenReport))
    world.trainer.todo.remove(report)
    until(world, 6)
    found_at(world, 6)
    world.give(m.ReportReceived(incarnation=1, report=report))
    assert promoted(until(world, 8)) == [0]
    assert report.step in promoted(until(world, 9))


def test_a_rollback_begins_the_watch_anew_and_what_it_left_is_never_promoted():
    """A promoted checkpoint stays promoted; the end of epoch 2 was abandoned."""
    world = until(World(0, snapshot_watch=3, **EVERY_EPOCH), 10)
    left = world.state.checkpoints.newest
    rolled_back(world, epoch=1)
    at_once = promoted(world)
    world.run()

    assert (left.step, at_once) == (8, [0, 4])
    assert left.id not in steps_at_promotion(world)
    assert [one.step for one in world.state.checkpoints.catalogue if one.promoted and one.branch == 1] == [8]


def entries(*flags: bool) -> tuple[st.CatalogueEntry, ...]:
    """One every ten steps."""
    place = {"epoch": 1, "batch": 0, "branch": 0, "manifest": "", "size": 1, "wall": 0}
    return tuple(
        st.CatalogueEntry(
            id=f"c{n}",
            reason=m.CheckpointReason.EPOCH,
            step=10 * n,
            begun_seq=n,
            committed_seq=n,
            promoted=flag,
            **place,
        )
        for n, flag in enumerate(flags)
    )


@pytest.mark.parametrize(
    ("flags", "visits", "step"),
    [
        ((True, True, False, False), (), 10),
        ((True, True, False, False), ((10, 2),), 0),
        ((True, True, False, False), ((10, 2), (0, 2)), None),
        ((False, False, True, False), ((20, 2),), 10),
        ((False, False, False), (), 20),
        ((False, False, False), ((20, 2),), 10),
    ],
    ids=[
        "the newest promoted",
        "then older",
        "then none",
        "older ones of an older version",
        "none is",
        "none is, older",
    ],
)
def test_a_rollback_by_itself_goes_to_the_newest_promoted_and_from_there_only_further_back(flags, visits, step):
    """Newer checkpoints may hold the same fault. A repeated order without a place goes to the same one."""
    state = _with(RunState(), entries(*flags), visits)
    found = q.automatic_target(state, m.Tier.FULL)
    ordered = q.find_target(state, m.Rollback())
    newest_promoted = max((n for n, is_promoted in enumerate(flags) if is_promoted), default=len(flags) - 1)

    assert (None if found is None else found.step) == step
    assert ordered.step == 10 * newest_promoted
    # One who does name a place means it.
    assert q.find_target(state, m.Rollback(step=10**6)).step == 10 * (len(flags) - 1)


def _with(state: RunState, catalogue: tuple[st.CatalogueEntry, ...], visits: tuple[tuple[int, int], ...]) -> RunState:
    held = replace(state.checkpoints, catalogue=catalogue)
    return replace(state, checkpoints=held, rollbacks=replace(state.rollbacks, places=visits))


def test_disasters_promote_each_but_once_and_none_that_was_left_or_is_gone(seed):
    """And what is watched is what may still be promoted, at any moment."""
    count = 0
    for offset in range(25):
        world = World(seed + offset, deaths_max=50, snapshot_watch=2, keep_last=1, quota=50, **EVERY_EPOCH)
        world.goes_back = True
        for _ in range(300):
            if world.exit is None:
                world.anything()
            held = world.state.checkpoints
            gone = [one for one in held.catalogue if one.abandoned or one.rejected or one.condemned or one.reduced]
            waiting = {one.id for one in held.catalogue if not one.promoted} - {one.id for one in gone}
            assert {one.id for one in held.watched} == waiting, f"seed {seed + offset}"
        ids = [event.id for event in find(world, m.CheckpointPromoted)]
        assert len(ids) == len(set(ids)), f"seed {seed + offset}"
        assert canonical_bytes(fold(RunState(), world.events)) == canonical_bytes(world.state)
        count += len(ids)
    assert count > 25


def test_a_step_that_promotes_nothing_asks_little():
    """The oldest that is watched decides: newer ones' time is later."""
    world = until(World(0, snapshot_watch=3, **EVERY_EPOCH), 5)
    watched = world.state.checkpoints.watched
    assert [one.step for one in watched] == [4]
    steps = [m.StepCompleted(step=step, epoch=1, batch=1, loss=1.0, grad_norm=1.0, lr=0.1, rates=0) for step in (6, 7)]
    found = [checkpoints.promoted(world.state, step, At(m.Now(1, 1), world.state)) for step in steps]
    assert [decision is not None for decision in found] == [False, True]
    tick_until(world, lambda: not world.state.checkpoints.watched, "the end of its watch")


@pytest.mark.parametrize(("watch", "step"), [(3, 4), (32, 8)])
def test_an_emergency_leads_back_past_what_is_not_promoted_yet(watch, step):
    """At step 9, right after a checkpoint: back to the one before, or to the newest if none is promoted yet."""
    world = until(World(0, snapshot_watch=watch, **EVERY_EPOCH), 9)
    tick_until(world, lambda: world.state.checkpoints.newest.step == 8, "the end of the second epoch")
    world.command(m.RaiseEmergency(level=m.Level.MAJOR, reason="it diverges"))
    tick_until(world, lambda: find(world, m.RolledBack), "a rollback")

    assert find(world, m.RollbackBegun)[0].to_step == find(world, m.RolledBack)[0].step == step
