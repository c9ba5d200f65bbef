"""The consequences of an analysis: nothing if it is too late, if its verdict is no, or if its masks were rejected."""

from __future__ import annotations

from msgspec.structs import replace

from tests import order_events
from tests.core.pruning.pruned import PARAMETERS, PLAN, SPEED, PrunedWorld
from tests.core.simulate import find, tick_until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.pruning.verdict import PruningDecision

START, END = m.CheckpointReason.START, m.CheckpointReason.END


class SilentWorld(PrunedWorld):
    """Its analyses do not answer by themselves."""

    silent = True

    def _do(self, effect):
        if self.silent and isinstance(effect, m.AnalyzeCheckpoint):
            self.asked.append(effect.request)
        else:
            super()._do(effect)


def analysing():
    """A run that trains while its first cycle is analysed."""
    world = SilentWorld(1, epochs=5, prune=PLAN)
    tick_until(world, lambda: world.asked, "a cycle")
    return world


def test_an_analysis_that_was_cancelled_may_not_answer_for_the_next_one():
    """Neither with a result nor with a failure; the next one's own answer counts."""
    world = analysing()
    late = world.asked[-1]
    world.command(m.PruneDisable())
    world.command(m.PruneEnable())
    tick_until(world, lambda: len(world.asked) > 1, "the next cycle")
    for answer in (m.AnalysisReply(cycle=late.cycle, why="it died"), world.answer_to(late)):
        world.give(answer)
        assert find(world, m.PruneCycleFailed) == find(world, m.PruneAnalyzed) == []
    world.give(world.answer_to(world.asked[-1]))

    assert [one.cycle for one in find(world, m.PruneAnalyzed)] == [world.asked[-1].cycle]


def test_an_analysis_on_a_disk_that_fills_is_given_up_and_counts_for_no_breaker():
    """It would fail for want of space. With space again the cycle begins anew."""
    world = analysing()
    request = world.asked[-1]
    world.give(m.DiskMeasured(free=0, floor=1))
    (ended,) = find(world, m.PruneCycleCancelled)
    world.give(
        m.AnalysisReply(cycle=request.cycle, why="The analysis raised OSError: [Errno 28] No space left on device")
    )
    tick_until(world, lambda: world.state.run.phase is st.Phase.PAUSED, "a pause")
    world.give(m.DiskMeasured(free=2, floor=1))
    tick_until(world, lambda: len(world.asked) > 1, "the next cycle")

    assert (ended.cycle, ended.why) == (request.cycle, "the space on the disk is low")
    assert find(world, m.PruneCycleFailed) == []
    assert world.state.pruning.failures == 0


def test_a_verdict_of_no_masks_nothing():
    """Neither by the schedule nor by an order, which is refused with the verdict's reason."""
    world = analysing()
    answer = world.answer_to(world.asked[-1])
    found = replace(answer.found, decision=PruningDecision.NO_GO, reasons=("The accuracy fell.",))
    world.give(replace(answer, found=found))
    refused = world.command(m.PruneApply())

    assert isinstance(refused, m.Refusal)
    assert "refused its masks: The accuracy fell." in refused.why
    assert find(world, order_events.given(m.MaskUnits)) == []


def test_masks_that_were_rejected_are_not_ordered_again():
    """A later analysis may find the same: neither the schedule nor an operator applies them a second time."""
    world = SilentWorld(1, epochs=5, prune=replace(PLAN, window_steps=100))
    tick_until(world, lambda: world.asked, "a cycle")
    found = world.answer_to(world.asked[0]).found
    world.give(m.AnalysisReply(cycle=world.asked[0].cycle, found=found))
    tick_until(world, lambda: world.state.pruning.window is not None, "masks")
    report = m.PruneWatchReport(cycle=world.asked[0].cycle, step=world.state.progress.step, trips=(SPEED,))
    world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
    tick_until(world, lambda: len(world.asked) > 1, "the next cycle")
    world.give(m.AnalysisReply(cycle=world.asked[1].cycle, found=found))
    refused = world.command(m.PruneApply())

    assert [one.cycle for one in find(world, m.PruneAnalyzed)] == [one.cycle for one in world.asked]
    assert isinstance(refused, m.Refusal)
    assert "the masks of cycle 1 were rejected" in refused.why
    assert len(find(world, order_events.given(m.MaskUnits))) == 1


def test_an_importance_file_that_no_event_names_is_removed():
    """Of an answer that comes too late, of one that is refused; each start sweeps what its predecessor left."""
    world = analysing()
    late = world.asked[-1]
    world.command(m.PruneDisable())
    world.give(world.answer_to(late))
    assert world.removed == [late.output]
    world.command(m.PruneEnable())
    tick_until(world, lambda: len(world.asked) > 1, "the next cycle")
    answer = world.answer_to(world.asked[-1])
    world.give(replace(answer, found=replace(answer.found, pruned_parameters=PARAMETERS)))
    assert world.removed == [late.output, world.asked[-1].output]
    tick_until(world, lambda: len(world.asked) > 2, "a cycle after a failed one")
    world.restart_daemon()
    assert [(one.kept, one.highest) for one in world.swept] == [((), world.asked[-1].cycle)]
    tick_until(world, lambda: len(world.asked) > 3, "a cycle of the next daemon")
    world.give(world.answer_to(named := world.asked[-1]))
    world.restart_daemon()

    assert [one.importance for one in find(world, m.PruneAnalyzed)] == [named.output]
    assert named.output not in world.removed
    assert named.output in world.swept[-1].kept
    assert world.swept[-1].highest >= named.cycle


def test_an_open_breaker_takes_no_checkpoints_for_cycles():
    """Without it each epoch ends with one, although the configuration asks for one in a hundred."""
    plan = replace(PLAN, failures=1)
    world = SilentWorld(1, epochs=5, prune=plan, checkpoint_every_epochs=100)
    tick_until(world, lambda: world.asked, "a cycle")
    world.give(m.AnalysisReply(cycle=world.asked[-1].cycle, why="it died"))
    assert find(world, m.PruneBreakerOpened)
    world.run()

    assert [one.reason for one in find(world, m.CheckpointBegun)] == [START, m.CheckpointReason.EPOCH, END]
