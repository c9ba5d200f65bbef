"""Drawn cycles, orders, deaths and rollbacks: caps hold, one thing at a time, and no rejected masks come back."""

from __future__ import annotations

import functools
import random

from msgspec.structs import replace

from tests import order_events
from tests.core.pruning.pruned import PARAMETERS, PLAN, PrunedWorld, assert_agrees, parameters_of
from tests.core.seeds.seeded import carried_through, in_step
from tests.core.simulate import find
from tests.core.test_lifecycle import KEEP_BEST
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.state.run_state import RunState, apply


def disturb(world, draw):
    """One drawn thing; sometimes a checkpoint or a rollback."""
    kind = draw.random()
    targets = [one.id for one in world.state.checkpoints.catalogue if one.is_target]
    if kind < 0.02 and targets and world.goes_back:
        world.command(m.Rollback(to=draw.choice(targets)))
    elif kind < 0.06:
        world.command(m.Checkpoint())
    else:
        world.anything()


class Watcher:
    """Folds the events again, and holds each to what must be true of pruning."""

    def __init__(self):
        self.state = RunState()
        self.rejected: set[str] = set()
        self.applied = 0

    def look(self, event, where):
        before, self.state = self.state, apply(self.state, event)
        pruning, plan = self.state.pruning, self.state.run.policy.prune
        match event:
            case m.PruneCycleBegun():
                assert before.pruning.open is None, where
                assert event.cycle == before.pruning.cycles + 1, where
                assert before.pruning.window is None, where
            case m.OrderGiven(order=m.MaskUnits() as order):
                assert q.phase_of(before) is PruningPhase.ACTIVE_PRUNING, where
                assert order.sha256 not in self.rejected, where
                assert order.pruned_parameters == parameters_of(order.units), where
                assert order.pruned_parameters <= 0.1 * PARAMETERS, where
                assert order.pruned_parameters + before.pruning.pruned_parameters <= 0.3 * PARAMETERS, where
            case m.OrderActed(outcome=m.Masking(pinned=pinned)):
                self.applied += 1
                assert pinned, where
            case m.MaskSetRejected():
                self.rejected.add(event.sha256)
            case m.RolledBack():
                contained = [one for one in before.pruning.past if one.number <= (event.orders or 0)]
                assert pruning.sets == (contained[-1].sets if contained else ()), where
                held = contained[-1] if contained else None
                assert pruning.pruned == (
                    sum(one.channels for one in held.sets) + held.removed_channels if held else 0
                ), where
                assert pruning.pruned_parameters == (
                    parameters_of(pruning.masked) + held.removed_parameters if held else 0
                ), where
        waiting = [one for one in self.state.boundary.waiting if isinstance(one.order, m.MaskUnits | m.CompactModel)]
        assert len(waiting) <= 1, where
        assert plan is None or pruning.share <= 0.3, where
        removed = {name: range(count) for name, count in pruning.removed.items()}
        assert pruning.pruned_parameters == parameters_of(pruning.masked) + parameters_of(removed), where
        if pruning.window is not None:
            held = self.state.checkpoints.catalogue
            assert any(one.id == pruning.window.pinned and not one.condemned for one in held), where


def test_no_order_of_events_breaks_a_promise_of_pruning(seed):
    """Caps, one cycle at a time, rollbacks that restore, rejected masks that stay away; the trainer agrees."""
    compared = rolled_back = applied = compacted = rejected = failed = 0
    for offset in range(45):
        plan = replace(PLAN, compact_every=offset % 3)
        world = PrunedWorld(seed + offset, epochs=5, keep_last=3, prune=plan, **KEEP_BEST)
        world.goes_back, world.lies = offset % 2 == 0, offset % 3 == 0
        watcher, where = Watcher(), f"seed {seed + offset}"
        act = functools.partial(disturb, draw=random.Random(seed + offset))
        compared += carried_through(world, 600, act, watcher.look, assert_agrees, where)
        assert watcher.state == world.state
        assert not find(world, m.ReportRefused)
        applied += watcher.applied
        compacted += len(find(world, order_events.acted(m.CompactModel)))
        rejected += len(find(world, m.MaskSetRejected))
        failed += len(find(world, m.PruneCycleFailed))
        rolled_back += len(find(world, m.RolledBack))
    print(f"seed {seed}: {applied} masks, {compacted} compactions, {rejected} rejected, {failed} failed")
    print(f"{compared} comparisons, {rolled_back} rollbacks")

    assert min(applied, rejected) > 10
    assert compacted > 0
    assert failed > 0
    assert compared > 1000
    assert rolled_back > 20


def test_deaths_change_nothing_of_what_is_pruned(seed):
    """A re-run repeats the journal: the same masks and the same digest over orders, with and without deaths."""

    def run(deaths):
        draw, world = random.Random(seed), PrunedWorld(seed, epochs=5, **KEEP_BEST)
        while world.exit is None:
            world.tick()
            state = world.state
            # A death may lose a checkpoint, and with it the cycle that would begin there; or delay a report.
            is_calm = in_step(world) and not (state.boundary.waiting or state.checkpoints.open or world.due)
            if (
                deaths
                and is_calm
                and state.pruning.window is None
                and (draw.random() < 0.3 or not state.trainer.deaths_total)
            ):
                world.crash_trainer()
        return world

    calm, troubled = run(deaths=False), run(deaths=True)
    print(f"seed {seed}: {len(find(troubled, m.TrainerDied))} deaths")
    assert find(troubled, m.TrainerDied)
    assert find(calm, order_events.acted(m.MaskUnits))
    assert calm.state.boundary.digest == troubled.state.boundary.digest
    assert calm.state.pruning.sets == troubled.state.pruning.sets
    assert calm.state.pruning.past == troubled.state.pruning.past
