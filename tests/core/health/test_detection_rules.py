"""The kernel's reaction to a finding: always an answer, a rollback if the finding asks for one, and each shift once."""

from __future__ import annotations

import math

import pytest

from tests.core.simulate import World, completes, find, kinds, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict
from tolariad.core.engine import At
from tolariad.core.rules.health_detection import stalled
from tolariad.core.state.health_detection import _validated
from tolariad.core.state.run_state import apply


def verdict(finding: Finding, value: float = math.inf) -> Verdict:
    """Not finite, so that a finding that is grave leads back at once."""
    return Verdict(finding, Signal.LOSS, value, 2.0, 4.0)


def tell(world: World, finding: Finding | Verdict, *, step: int | None = None, late: bool = False) -> list[object]:
    """The trainer's detector speaks of the next update (or of the last one, late); the orders that follow."""
    progress = world.state.progress
    at = progress.step + (not late) if step is None else step
    told = finding if isinstance(finding, Verdict) else verdict(finding)
    report = m.InstabilityReport(
        verdict=told, step=at, epoch=progress.epoch, batch=progress.batch + 1, first_batch=1, late=late
    )
    before = len(world.trainer.orders)
    world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
    return list(world.trainer.orders)[before:] if world.trainer is not None else []


def until_back(world: World) -> None:
    for _ in range(60):
        if world.state.rollbacks.open is None:
            return
        world.tick()


@pytest.mark.parametrize(
    ("finding", "level", "tier"),
    [
        (Finding.SUSTAINED, m.Level.MAJOR, m.Tier.FULL),
        (Finding.DIVERGENCE, m.Level.MAJOR, m.Tier.FULL),
        (Finding.EXPLOSION, m.Level.SEVERE, m.Tier.FULL),
        (Finding.NON_FINITE, m.Level.MAJOR, m.Tier.FULL),
    ],
)
def test_what_is_grave_leads_back_and_every_event_names_its_cause(finding, level, tier):
    """The finding, the emergency, the rollback: one chain, whose beginning is what was measured."""
    world = until(World(0), 6)
    orders = tell(world, finding)
    found = find(world, m.InstabilityDetected)[0]
    raised, begun = find(world, m.EmergencyRaised)[0], find(world, m.RollbackBegun)[0]
    seq = world.events.index(found) + 1

    assert [type(order) for order in orders if not isinstance(order, m.GoOn)][-1] is m.PrepareRollback
    assert not [order for order in orders if isinstance(order, m.GoOn)]
    assert (raised.level, begun.tier) == (level, tier)
    assert (raised.cause, begun.cause, begun.root) == (seq, world.events.index(raised) + 1, seq)
    assert "loss inf at step 7 (usual 2, limit 4)" in begun.why
    completes(world)
    assert find(world, m.RolledBack)[0].root == seq


def test_where_nothing_is_to_be_done_the_finding_is_recorded_and_the_update_made():
    """`detect.rollback: false`, and a run that is ending."""
    world = until(World(0, detect_rollback=False), 6)
    ending = until(World(0), 6)
    ending.command(m.Stop(mode=m.StopMode.GRACEFUL))

    for one in (world, ending):
        assert tell(one, Finding.EXPLOSION)[-1] == m.GoOn(step=7, cause=kinds(one).index("InstabilityDetected") + 1)
        assert not find(one, m.RollbackBegun)
        assert find(one, m.InstabilityDetected)[-1].level is None
        assert one.state.instability.asked is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_by_default_a_value_that_is_not_finite_leads_back(value):
    """It calls for a rollback if its batch was not skipped, or if many in a row were."""
    world = until(World(0), 6)
    tell(world, Verdict(Finding.SUSTAINED, Signal.LOSS, value, 2.0, 4.0))
    completes(world)
    assert len(find(world, m.RolledBack)) == 1


def test_a_question_that_crosses_with_a_rollback_is_answered_too():
    """The order to go back comes next; the gate is closed until then."""
    world = until(World(0), 6)
    world.command(m.Rollback(epoch=1))

    assert isinstance(tell(world, Finding.DIVERGENCE)[-1], m.GoOn)
    world.run()
    assert world.state.rollbacks.done == 1


def test_a_target_that_cannot_be_used_is_followed_by_an_older_one():
    """The trainer waits all the while: it is told nothing but the next rollback."""
    world = until(World(0), 7)
    world.break_newest()
    tell(world, Finding.DIVERGENCE)
    world.run()

    assert [one.to_step for one in find(world, m.RollbackBegun)] == [4]
    assert [one.to_step for one in find(world, m.RollbackEscalated)] == [0]
    assert find(world, m.RollbackAborted) == []
    assert len(find(world, m.RolledBack)) == 1
    assert world.state.run.phase is st.Phase.COMPLETED


def test_a_late_finding_is_no_question_and_one_of_an_abandoned_step_is_nothing():
    """A spike whose update was made is a record; what is not finite leads back."""
    world = until(World(0), 6)

    assert tell(world, Finding.SPIKE, late=True) == []
    assert not find(world, m.RollbackBegun)
    assert tell(world, Finding.NON_FINITE, step=5, late=True) == []
    tell(world, Finding.NON_FINITE, late=True)
    assert len(find(world, m.RollbackBegun)) == 1
    assert len(find(world, m.InstabilityDetected)) == 2


def test_a_verdict_on_another_step_is_refused():
    """A trainer that is elsewhere than the journal is not to be trusted."""
    world = until(World(0), 6)
    tell(world, Finding.DIVERGENCE, step=9)

    assert "ReportRefused" in kinds(world)


def validated(accuracies: list[float]) -> list[st.Instability]:
    """The slice after each validation."""
    found, slice_ = [], st.Instability()
    for epoch, accuracy in enumerate(accuracies, 1):
        event = m.ValidationFinished(epoch=epoch, step=epoch, metrics={"accuracy": accuracy}, samples=5, seconds=0.1)
        slice_ = _validated(slice_, event, m.Cause(1, 1))
        found.append(slice_)
    return found


def test_an_accuracy_that_falls_to_half_of_its_average_has_collapsed_and_enters_it_only_when_it_stays():
    """0.8 for four validations, then 0.3: the third 0.3 in a row is the level. NaN never is."""
    slices = validated([0.8, 0.8, 0.8, 0.8, 0.3, 0.3, 0.3, 0.3])
    nan = validated([0.8, 0.8, 0.8, float("nan"), float("nan"), float("nan"), 0.8])

    assert [one.fallen for one in slices] == [0] * 4 + [1, 2, 0, 0]
    assert [one.accuracy for one in slices[3:]] == [0.8, 0.8, 0.8, 0.3, 0.3]
    assert [one.sound_step for one in slices[3:]] == [4, 4, 4, 7, 8]
    assert [one.fallen for one in nan] == [0] * 3 + [1, 2, 0, 0]
    assert nan[-1].accuracy == 0.8


def test_the_first_validations_are_no_average_to_fall_from():
    """The validations of the first three epochs vary; the fourth one is the first that can collapse."""
    assert [one.fallen for one in validated([0.8, 0.2, 0.8])] == [0] * 3
    assert [one.fallen for one in validated([0.8, 0.8, 0.8, 0.3])] == [0] * 3 + [1]


def collapsing(world: World, *fallen: int, accuracy: float = 0.1, until_epoch: int = 3) -> World:
    """Validate at 0.9 but for these epochs, and tick until `until_epoch` was validated or the run went back."""
    world.accuracy.update({epoch: accuracy if epoch in fallen else 0.9 for epoch in range(1, 4)})
    for _ in range(500):
        done = [one.epoch for one in find(world, m.ValidationFinished)]
        if find(world, m.RolledBack) or until_epoch in done:
            break
        world.tick()
    return world


@pytest.mark.parametrize(("chance", "fallen"), [(None, 0.1), (0.5, 0.51)])
def test_a_collapse_that_the_next_validation_confirms_is_compared_at_once(monkeypatch, chance, fallen):
    """The first is said. With the second a state from before both is pinned, and both states are to be compared."""
    monkeypatch.setattr("tolariad.core.state.health_detection._VALIDATIONS_MIN", 1)
    world = collapsing(World(0, chance=chance), 2, 3, accuracy=fallen)
    said, found = find(world, m.InstabilityDetected)
    sound = find(world, m.ValidationFinished)[0].step

    assert [(one.finding, one.signal, one.epoch) for one in (said, found)] == [
        (Finding.COLLAPSE, Signal.ACCURACY, epoch) for epoch in (2, 3)
    ]
    assert (said.insured, found.insured) == (False, True)
    assert found.cause == len(kinds(world)) - kinds(world)[::-1].index("ValidationFinished")
    (pinned,), (begun,) = find(world, m.StatePinned), find(world, m.ComparisonBegun)
    assert (pinned.root, begun.root) == (found.root, found.root)
    assert pinned.step <= sound


def test_a_collapse_that_the_next_validation_denies_is_only_said(monkeypatch):
    """One validation may be unlucky; the run never went back and is not conservative."""
    monkeypatch.setattr("tolariad.core.state.health_detection._VALIDATIONS_MIN", 1)
    world = collapsing(World(0), 2)
    world.run()

    assert [(one.finding, one.level) for one in find(world, m.InstabilityDetected)] == [(Finding.COLLAPSE, None)]
    assert not find(world, m.RollbackBegun)
    assert not world.state.stability.conservative
    assert world.state.run.phase is st.Phase.COMPLETED


def test_a_collapse_without_a_checkpoint_from_before_it_goes_on_in_conservative_mode(monkeypatch):
    """To go back into the collapse would help nobody."""
    monkeypatch.setattr("tolariad.core.state.health_detection._VALIDATIONS_MIN", 1)
    world = World(0)
    world.accuracy[1] = 0.9
    until(world, 7)
    for one in world.state.checkpoints.catalogue:
        world.state = apply(world.state, m.CheckpointRejected(id=one.id, file="model", why="gone"))
    collapsing(world, 2, 3)

    assert find(world, m.HeldOnTo)[-1].checkpoint == ""
    assert "there is no state to keep as a way back; the run goes on" in world.state.stability.why
    assert world.state.run.phase is st.Phase.RUNNING


def test_a_step_that_stalls_is_a_record_and_what_lies_between_epochs_is_no_step():
    """Against the average of the steps before it."""
    world = until(World(0), 3)
    state = world.state
    last = state.instability.last_mono

    def after(ns):
        event = m.StepCompleted(step=4, epoch=1, batch=4, loss=1.0, grad_norm=1.0, lr=0.1, rates=5, mono=last + ns)
        return stalled(apply(state, event), event, At(m.Now(1, event.mono), state))

    assert after(900_000_000) is None
    (found,) = after(1_100_000_000).events
    assert (found.finding, found.signal, found.asks) == (Finding.STALL, Signal.STEP_TIME, False)
    assert until(world, 4).state.instability.found == 0
    world.mono += 10**12
    assert until(world, 5).state.instability.found == 0
    world.mono += 10**12
    assert until(world, 6).state.instability.found == 1
    assert not find(world, m.RollbackBegun)


@pytest.mark.parametrize("finding", [Finding.SHIFT, Finding.SPIKE, Finding.STALL])
def test_what_is_uncertain_is_recorded_and_the_update_made(finding):
    """With `detect.skip: false` the trainer asks about a spike, too: one batch is no reason to go back."""
    world = until(World(0), 6)
    orders = tell(world, finding)
    world.run()

    assert isinstance(orders[-1], m.GoOn)
    assert find(world, m.InstabilityDetected)[0].level is None
    assert not find(world, m.EmergencyRaised)
    assert not find(world, m.RollbackBegun)
    assert world.state.run.phase is st.Phase.COMPLETED
