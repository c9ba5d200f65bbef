"""Seeds and masks in one run: what was found in a model of another shape is never masked, and is nobody's failure."""

from __future__ import annotations

import random

from msgspec.structs import replace

from tests import order_events
from tests.core.pruning.pruned import PLAN, PrunedTrainer, PrunedWorld, assert_agrees
from tests.core.pruning.test_any_order import Watcher
from tests.core.seeds.seeded import SLOTS, SeededTrainer, SeededWorld, in_step
from tests.core.simulate import find, tick_until
from tests.core.test_lifecycle import KEEP_BEST
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import PLANTED, Stage
from tolariad.core.state.run_state import capture, read_capture

WRITTEN = m.CheckpointWrittenReport
CHANGED = "the model has changed its shape since it was analysed"


def shape_of(stages, gone):
    """Return what the shape of the model follows from: the seeds that have a module, and the units that are gone."""
    planted = sorted((slot, number) for slot, (stage, _, number) in stages.items() if stage in PLANTED)
    return f"{planted} {sorted(gone.items())}"


class GrownTrainer(PrunedTrainer, SeededTrainer):
    """It masks only units that were found in a model of its own shape."""

    def _refused(self, order, *measured):
        if measured:
            return SeededTrainer._refused(self, order, *measured)
        if isinstance(order, m.MaskUnits) and order.plan != shape_of(self.stages, self.gone):
            return CHANGED
        if isinstance(order, m.CompactModel):
            growing = [slot for slot in self.stages if self.stage(slot) in PLANTED - {Stage.FOSSILIZED}]
            if growing:
                return f"slot {growing[0]} holds a seed that is not a part of the model yet"
        return PrunedTrainer._refused(self, order)


class GrownWorld(PrunedWorld, SeededWorld):
    """A world that grows seeds and prunes. An analysis may take long: it is answered when `is_answered` says so."""

    is_answered = True

    def new_trainer(self, incarnation):
        given = incarnation, self.environment, self.accuracy, self.broken
        masks = {"saved_masks": self.saved_masks, "trips": self.trips}
        seeds = {"saved_stages": self.saved_stages, "sick": self.sick}
        return GrownTrainer(*given, saved=self.saved, owing=self.owing, **masks, **seeds)

    def _do(self, effect):
        if isinstance(effect, m.AnalyzeCheckpoint) and not self.is_answered:
            self.asked.append(effect.request)
        else:
            super()._do(effect)

    def answer_to(self, request):
        answer = super().answer_to(request)
        if answer.found is None:
            return answer
        stages, (_, gone, _) = self.saved_stages[request.checkpoint], self.saved_masks[request.checkpoint]
        return replace(answer, found=replace(answer.found, plan=shape_of(stages, gone)))


def analysing():
    """A run that trains while its first cycle is analysed."""
    world = GrownWorld(1, epochs=5, prune=PLAN)
    world.is_answered = False
    tick_until(world, lambda: world.asked, "a cycle")
    return world


def germinated(world):
    """Let a seed germinate."""
    world.germinate()
    tick_until(world, lambda: find(world, order_events.acted(m.MoveSeed)), "a germination")


def test_what_was_found_before_a_germination_is_not_masked():
    """The analysis took longer than the seed. Its importance is kept; an operator is told why nothing is masked."""
    world = analysing()
    germinated(world)
    world.give(world.answer_to(world.asked[0]))
    refused = world.command(m.PruneApply())

    assert [one.cycle for one in find(world, m.PruneAnalyzed)] == [1]
    assert find(world, order_events.given(m.MaskUnits)) == []
    assert isinstance(refused, m.Refusal)
    assert "cannot be masked any more: the model has changed its shape since" in refused.why
    assert world.state.pruning.failures == 0


def test_masks_that_a_germination_overtook_have_not_failed():
    """Both orders wait for the next trainer, the germination first. The trainer refuses the masks: no failure."""
    world = analysing()
    world.crash_trainer()
    world.tick()
    world.germinate()
    world.give(world.answer_to(world.asked[0]))
    assert [type(one.order) for one in world.state.boundary.waiting] == [m.MoveSeed, m.MaskUnits]
    tick_until(world, lambda: find(world, order_events.aborted(m.MaskUnits)), "the refusal")

    assert [one.why for one in find(world, order_events.aborted(m.MaskUnits))] == [CHANGED]
    assert world.state.pruning.failures == 0
    world.is_answered = True
    tick_until(world, lambda: find(world, order_events.acted(m.MaskUnits)), "masks of another cycle")


def test_a_checkpoint_from_before_a_germination_is_not_analysed():
    """It was captured, the seed germinated, and only then it was committed. The next checkpoint is analysed."""
    world = GrownWorld(1, epochs=5, prune=PLAN)
    tick_until(world, lambda: world.state.progress.epoch_finished, "the end of an epoch")
    tick_until(world, lambda: any(isinstance(one, WRITTEN) for one in world.trainer.todo), "its checkpoint")
    late = world.trainer.todo.pop()
    germinated(world)
    world.trainer.todo.append(late)
    tick_until(world, lambda: find(world, m.PruneCycleBegun), "a cycle")

    assert late.id in {one.id for one in find(world, m.CheckpointCommitted)}
    assert find(world, m.PruneCycleBegun)[0].checkpoint != late.id


def test_no_order_of_seeds_and_masks_breaks_a_promise_of_either(seed):
    """Drawn orders, deaths, rollbacks: the trainer has the journal's masks and stages, and shapes are no failures."""
    compared = changed = applied = grown = compacted = 0
    for offset in range(20):
        draw = random.Random(seed + offset)
        world = GrownWorld(
            seed + offset, epochs=5, keep_last=3, prune=replace(PLAN, compact_every=offset % 3), **KEEP_BEST
        )
        world.goes_back, watcher, seen = offset % 3 == 0, Watcher(), 0
        for _ in range(600):
            if world.exit is not None:
                break
            disturb(world, draw)
            for number, event in enumerate(world.events[seen:], seen + 1):
                failures = watcher.state.pruning.failures
                watcher.look(event, f"seed {seed + offset}, event {number}: {event}")
                if isinstance(event, order_events.aborted(m.MaskUnits)) and event.why == CHANGED:
                    assert watcher.state.pruning.failures == failures, (seed + offset, event)
                    changed += 1
            seen = len(world.events)
            if in_step(world):
                compared += 1
                where = f"seed {seed + offset}, event {seen}"
                assert_agrees(world, where)
                known = {slot: (one.stage, one.germination) for slot, one in world.state.seeds.seeds.items()}
                assert known == {slot: (stage, number) for slot, (stage, _, number) in world.trainer.stages.items()}, (
                    where
                )
        assert watcher.state == world.state
        assert read_capture(capture(world.state)) == world.state
        causes = [one.cause for one in find(world, m.OrderActed) + find(world, m.OrderAborted)]
        assert len(causes) == len(set(causes))
        assert not find(world, m.ReportRefused)
        applied, grown = applied + watcher.applied, grown + len(find(world, order_events.acted(m.MoveSeed)))
        compacted += len(find(world, order_events.acted(m.CompactModel)))
    print(f"seed {seed}: {applied} masks, {changed} of another shape, {compacted} compactions, {grown} moves of seeds")
    print(f"{compared} comparisons")

    assert min(applied, grown) > 20
    assert compared > 1000


def disturb(world, draw):
    """One drawn thing; sometimes a seed advances, or a checkpoint or a rollback is ordered."""
    kind = draw.random()
    targets = [one.id for one in world.state.checkpoints.catalogue if one.is_target]
    if kind < 0.1:
        world.advance(draw.choice(SLOTS).name)
    elif kind < 0.12 and targets and world.goes_back:
        world.command(m.Rollback(to=draw.choice(targets)))
    elif kind < 0.15:
        world.command(m.Checkpoint())
    else:
        world.anything()
