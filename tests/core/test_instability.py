"""What the kernel makes of a finding: an answer always, a rollback where one is called for, and each shift once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.simulate import World, find, kinds, tick_until, until
from tolariad.core.detection import Finding, Signal, Verdict
from tolariad.core.engine import At
from tolariad.core.inputs import Now, ReportReceived
from tolariad.core.instability import Instability, _detected, _validated, stalled
from tolariad.core.run import Phase
from tolariad.core.state import apply
from tolariad.core.vocabulary import Cause
from tolariad.core.vocabulary import control as cv
from tolariad.core.vocabulary import detection as det
from tolariad.core.vocabulary import rollback as rb
from tolariad.core.vocabulary import run as rv
from tolariad.core.vocabulary import steps as sv


def verdict(finding: Finding) -> Verdict:
    return Verdict(finding, Signal.LOSS, 90.0, 2.0, 4.0)


def tell(world: World, finding: Finding | Verdict, *, step: int | None = None, late: bool = False) -> list[object]:
    """The trainer's detector speaks of the next update (or of the last one, late); the orders that follow."""
    progress = world.state.progress
    at = progress.step + (not late) if step is None else step
    told = finding if isinstance(finding, Verdict) else verdict(finding)
    report = det.InstabilityReport(
        verdict=told, step=at, epoch=progress.epoch, batch=progress.batch + 1, first_batch=1, late=late
    )
    before = len(world.trainer.orders)
    world.give(ReportReceived(incarnation=world.trainer.incarnation, report=report))
    return list(world.trainer.orders)[before:] if world.trainer is not None else []


@pytest.mark.parametrize(
    ("finding", "level", "tier"),
    [
        (Finding.SUSTAINED, rb.Level.MAJOR, rb.Tier.FULL),
        (Finding.DIVERGENCE, rb.Level.MAJOR, rb.Tier.FULL),
        (Finding.EXPLOSION, rb.Level.SEVERE, rb.Tier.FULL),
        (Finding.NON_FINITE, rb.Level.MAJOR, rb.Tier.FULL),
    ],
)
def test_what_is_grave_leads_back_and_every_event_names_its_cause(finding, level, tier):
    """The finding, the emergency, the rollback: one chain, whose beginning is what was measured."""
    world = until(World(0), 6)
    orders = tell(world, finding)
    found = find(world, det.InstabilityDetected)[0]
    raised, begun = find(world, rb.EmergencyRaised)[0], find(world, rb.RollbackBegun)[0]
    seq = world.events.index(found) + 1

    assert [type(order) for order in orders if not isinstance(order, det.GoOn)][-1] is rb.PrepareRollback
    assert not [order for order in orders if isinstance(order, det.GoOn)]
    assert (raised.level, begun.tier) == (level, tier)
    assert (raised.cause, begun.cause, begun.root) == (seq, world.events.index(raised) + 1, seq)
    assert "loss 90 at step 7, where 2 was usual and 4 the limit" in begun.why
    world.run()
    assert world.state.run.phase is Phase.COMPLETED
    assert find(world, rb.RolledBack)[0].root == seq


def test_where_nothing_is_to_be_done_the_finding_is_recorded_and_the_update_made():
    """`detect.rollback: false`, and a run that is ending."""
    world = until(World(0, detect_rollback=False), 6)
    ending = until(World(0), 6)
    ending.command(cv.Stop(mode=rv.StopMode.GRACEFUL))

    for one in (world, ending):
        assert tell(one, Finding.EXPLOSION)[-1] == det.GoOn(step=7, cause=kinds(one).index("InstabilityDetected") + 1)
        assert not find(one, rb.RollbackBegun)
        assert one.state.instability.asked is not None


def test_a_question_that_crosses_with_a_rollback_is_answered_too():
    """The order to go back comes next; the gate is closed until then."""
    world = until(World(0), 6)
    world.command(rb.Rollback(epoch=1))

    assert isinstance(tell(world, Finding.DIVERGENCE)[-1], det.GoOn)
    world.run()
    assert world.state.rollbacks.done == 1


def test_a_target_that_cannot_be_used_is_followed_by_an_older_one():
    """The trainer waits all the while: it is told nothing but the next rollback."""
    world = until(World(0), 7)
    world.break_newest()
    tell(world, Finding.DIVERGENCE)
    world.run()

    assert [one.to_step for one in find(world, rb.RollbackBegun)] == [4]
    assert [one.to_step for one in find(world, rb.RollbackEscalated)] == [0]
    assert find(world, rb.RollbackAborted) == []
    assert len(find(world, rb.RolledBack)) == 1
    assert world.state.run.phase is Phase.COMPLETED


def test_the_third_time_at_one_place_goes_further_back_and_in_the_end_the_run_halts():
    """Twice to each; those that are taken anew on the way are the same places. When the first is used up, it is over."""
    world = World(0)
    for _ in range(20):
        until(world, 6)
        tell(world, Finding.DIVERGENCE)
        for _ in range(60):
            if world.state.rollbacks.open is None:
                break
            world.tick()
        if world.state.run.phase is Phase.FROZEN:
            break

    assert [one.step for one in find(world, rb.RolledBack)] == [4, 4, 0, 0]
    assert world.state.run.phase is Phase.FROZEN
    assert "no checkpoint is left" in world.state.run.why


def test_a_late_finding_is_no_question_and_one_of_an_abandoned_step_is_nothing():
    """A spike whose update was made is a record; what is not finite leads back."""
    world = until(World(0), 6)

    assert tell(world, Finding.SPIKE, late=True) == []
    assert not find(world, rb.RollbackBegun)
    assert tell(world, Finding.NON_FINITE, step=5, late=True) == []
    tell(world, Finding.NON_FINITE, late=True)
    assert len(find(world, rb.RollbackBegun)) == 1
    assert len(find(world, det.InstabilityDetected)) == 2


def test_a_verdict_on_another_step_is_refused():
    """A trainer that is elsewhere than the journal is not to be trusted."""
    world = until(World(0), 6)
    tell(world, Finding.DIVERGENCE, step=9)

    assert "ReportRefused" in kinds(world)


def validated(accuracies: list[float]) -> list[Instability]:
    """The slice after each validation."""
    found, slice_ = [], Instability()
    for epoch, accuracy in enumerate(accuracies, 1):
        event = sv.ValidationFinished(epoch=epoch, step=epoch, metrics={"accuracy": accuracy}, samples=5, seconds=0.1)
        slice_ = _validated(slice_, event, Cause(1, 1))
        found.append(slice_)
    return found


def test_an_accuracy_that_falls_to_half_of_its_average_has_collapsed_and_enters_it_only_when_it_stays():
    """0.8 for four validations, then 0.3: collapsed once; the second 0.3 in a row is the level. NaN never is."""
    slices = validated([0.8, 0.8, 0.8, 0.8, 0.3, 0.3, 0.3])
    nan = validated([0.8, 0.8, 0.8, float("nan"), float("nan"), 0.8])

    assert [one.collapsed for one in slices] == [False] * 4 + [True, False, False]
    assert [one.accuracy for one in slices[3:]] == [0.8, 0.8, 0.3, 0.3]
    assert [one.collapsed for one in nan] == [False] * 3 + [True, False, False]
    assert nan[-1].accuracy == 0.8


def test_the_first_validations_are_no_average_to_fall_from():
    """What a run shows in its first three epochs goes up and down; the fourth validation is the first that can collapse."""
    assert [one.collapsed for one in validated([0.8, 0.2, 0.8])] == [False] * 3
    assert [one.collapsed for one in validated([0.8, 0.8, 0.8, 0.3])] == [False] * 3 + [True]


@pytest.mark.parametrize(("chance", "fallen"), [(None, 0.1), (0.5, 0.51)])
def test_a_collapse_leads_back(monkeypatch, chance, fallen):
    """After the validation that showed it, with the validation as its cause; of two classes to guessing, where that is told."""
    monkeypatch.setattr("tolariad.core.instability._VALIDATIONS_MIN", 1)
    world = World(0, chance=chance)
    world.accuracy.update({1: 0.9, 2: fallen, 3: 0.9})
    for _ in range(500):
        if find(world, rb.RolledBack):
            break
        world.tick()
    (found,) = find(world, det.InstabilityDetected)

    assert (found.finding, found.signal, found.epoch, found.level) == (
        *(Finding.COLLAPSE, Signal.ACCURACY, 2, rb.Level.MAJOR),
    )
    assert found.cause == kinds(world).index("ValidationFinished", kinds(world).index("InstabilityDetected") - 2) + 1
    assert find(world, rb.RollbackBegun)[0].root == found.root


def test_a_step_that_stalls_is_a_record_and_what_lies_between_epochs_is_no_step():
    """Against the average of the steps before it."""
    world = until(World(0), 3)
    state = world.state
    last = state.instability.last_mono

    def after(ns):
        event = sv.StepCompleted(step=4, epoch=1, batch=4, loss=1.0, grad_norm=1.0, lr=0.1, rates=5, mono=last + ns)
        return stalled(apply(state, event), event, At(Now(1, event.mono), state))

    assert after(900_000_000) is None
    (found,) = after(1_100_000_000).events
    assert (found.finding, found.signal, found.asks) == (Finding.STALL, Signal.STEP_TIME, False)
    assert until(world, 4).state.instability.found == 0
    world.mono += 10**12
    assert until(world, 5).state.instability.found == 0
    world.mono += 10**12
    assert until(world, 6).state.instability.found == 1
    assert not find(world, rb.RollbackBegun)


def shift(value: float = 4.5, finding: Finding = Finding.SUSTAINED) -> Verdict:
    """The loss doubled, far below where it would have exploded."""
    return Verdict(finding, Signal.LOSS, value, 2.0, 4.0, explosion=30.0)


def course(world: World, at: int, told: Verdict, times: int = 20) -> World:
    """The trainer comes to step `at` again and again and finds the same, until the run stands still or is let through."""
    for _ in range(times):
        until(world, at - 1)
        tell(world, told)
        if world.state.rollbacks.open is None:
            break
        until_back(world)
    return world


def until_back(world: World) -> None:
    for _ in range(60):
        if world.state.rollbacks.open is None:
            return
        world.tick()


@pytest.mark.parametrize("finding", [Finding.SUSTAINED, Finding.DIVERGENCE])
def test_what_is_found_again_behind_two_rollbacks_is_the_level(finding):
    """A curriculum, a target network, another term of the loss: it is in the data, and no rollback takes it away."""
    world = course(World(0), 7, shift(finding=finding))
    found = find(world, det.InstabilityDetected)

    assert [one.step for one in find(world, rb.RolledBack)] == [4, 4]
    assert [(one.level, one.returns) for one in found] == [(rb.Level.MAJOR, 0), (rb.Level.MAJOR, 1), (None, 2)]
    assert len(find(world, rb.EmergencyRaised)) == 2
    world.run()
    assert world.state.run.phase is Phase.COMPLETED


def test_a_level_that_rises_on_is_followed_up_to_an_explosion():
    """Found again a little later it is still that place; beyond the first time's ceiling the run goes back again."""
    world = course(World(0), 7, shift())
    until(world, 8)
    orders = tell(world, shift(value=29.0, finding=Finding.DIVERGENCE))
    assert isinstance(orders[-1], det.GoOn)
    until(world, 9)
    tell(world, shift(value=31.0, finding=Finding.DIVERGENCE))

    assert [one.level for one in find(world, det.InstabilityDetected)[2:]] == [None, None, rb.Level.MAJOR]
    assert world.state.rollbacks.open is not None


@pytest.mark.parametrize(
    "told",
    [
        shift(value=float("nan")),
        shift(value=31.0),
        shift(finding=Finding.EXPLOSION),
        shift(finding=Finding.NON_FINITE),
        Verdict(Finding.SUSTAINED, Signal.LOSS, 4.5, 2.0, 4.0),
    ],
)
def test_what_is_lost_is_never_the_level(told):
    """Not finite, exploded, or of a version that did not say where it would have: further back, then it halts."""
    world = course(World(0), 7, told)

    assert [one.step for one in find(world, rb.RolledBack)] == [4, 4, 0, 0]
    assert world.state.run.phase is Phase.FROZEN


def test_another_place_has_rollbacks_of_its_own():
    """Farther on than the slow average looks back; a spike in between moves nothing."""
    told = det.InstabilityDetected(
        finding=Finding.SUSTAINED, signal=Signal.LOSS, value=4.0, baseline=2.0, limit=3.0, step=100, epoch=1, batch=1,
        level=rb.Level.MAJOR, explosion=30.0,
    )  # fmt: skip
    first = _detected(_detected(Instability(), told, Cause(1, 1)), told, Cause(1, 1))
    spike = replace(told, finding=Finding.SPIKE, level=None, step=300)
    near = _detected(_detected(first, spike, Cause(1, 1)), replace(told, step=356), Cause(1, 1))
    far = _detected(first, replace(told, step=357, explosion=9.0), Cause(1, 1))

    assert (first.trouble.step, first.trouble.returns, first.trouble.ceiling) == (100, 2, 30.0)
    assert (near.trouble.step, near.trouble.returns) == (356, 3)
    assert (far.trouble.step, far.trouble.returns, far.trouble.ceiling) == (357, 1, 9.0)


def test_an_operator_who_lets_a_halted_run_go_on_has_said_that_it_may():
    """Else it would halt at the same place for ever, as soon as it was resumed."""
    world = course(World(0), 7, shift(finding=Finding.EXPLOSION))
    assert world.state.run.phase is Phase.FROZEN
    at = world.state.progress.step
    tick_until(world, lambda: not world.state.trainer.alive, "its trainer is gone")
    world.command(cv.Resume())
    tick_until(world, lambda: world.state.progress.step > at, "it trains")
    tell(world, shift(finding=Finding.EXPLOSION))

    assert len(find(world, rv.RunFrozen)) == 1
    assert find(world, det.InstabilityDetected)[-1].level is None
    world.run()
    assert world.state.run.phase is Phase.COMPLETED
