"""Drawn commands, deaths, rollbacks and quarantines: no order of them leads to an illegal stage."""

from __future__ import annotations

import functools
import random

from tests import order_events
from tests.core.seeds.seeded import SLOTS, SeededWorld, assert_agrees, carried_through, in_step
from tests.core.simulate import find, tick_until
from tests.core.test_lifecycle import KEEP_BEST
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.seeds.stages import MOVES, Stage
from tolariad.core.state.run_state import RunState, apply


def disturb(world, draw):
    """One drawn thing; sometimes a checkpoint, a rollback, a quarantine or a death."""
    kind = draw.random()
    targets = [one.id for one in world.state.checkpoints.catalogue if one.is_target]
    if kind < 0.2 and not world.goes_back:
        # A run that never goes back lets its seeds grow up.
        world.advance(draw.choice(SLOTS).name)
    elif kind < 0.02 and targets:
        world.command(m.Rollback(to=draw.choice(targets)))
    elif kind < 0.05:
        world.command(m.Checkpoint())
    elif kind < 0.06:
        world.command(m.QuarantineAdd(seed=draw.choice(SLOTS).name))
    elif kind < 0.09 and world.state.quarantine.entries:
        world.command(m.QuarantineRemove(name=world.state.quarantine.entries[0].name))
    elif kind < 0.11:
        world.sick = {one.name for one in SLOTS if draw.random() < 0.2}
    else:
        world.anything()


def test_no_order_of_commands_deaths_and_rollbacks_leads_to_an_illegal_stage(seed):
    """Every move is legal for the journal; the trainer agrees whenever it stands where the journal does."""
    moves, compared, rolled_back, reached = 0, 0, 0, set()
    for offset in range(40):
        world = SeededWorld(seed + offset, epochs=5, checkpoint_gap_s=0.0, keep_last=3, **KEEP_BEST)
        world.goes_back, state, where = offset % 2 == 0, RunState(), f"seed {seed + offset}"

        def look(event, at):
            nonlocal state
            if isinstance(event, order_events.acted(m.MoveSeed)):
                before = state.seeds.seed(event.order.slot).stage
                assert event.order.stage in MOVES[before], (at, before)
                assert event.order.before is before
                reached.add(event.order.stage)
            state = apply(state, event)

        act = functools.partial(disturb, draw=random.Random(seed + offset))
        compared += carried_through(world, 700, act, look, assert_agrees, where)
        assert not any("moved to" in one.why for one in find(world, m.ReportRefused))
        assert state == world.state
        moves += len(find(world, order_events.acted(m.MoveSeed)))
        rolled_back += len(find(world, m.RolledBack))
    print(f"seed {seed}: {moves} moves, {compared} comparisons, {rolled_back} rollbacks, {sorted(reached)}")

    assert moves > 200
    assert compared > 1000
    assert rolled_back > 20
    assert reached == set(Stage) - {Stage.UNKNOWN, Stage.TERMINATED}


def test_deaths_change_nothing_of_the_seeds(seed):
    """The run with the same orders at the same steps, with and without deaths, ends with equal seeds and digest."""

    def run(deaths):
        draw, world = random.Random(seed), SeededWorld(seed, epochs=4, **KEEP_BEST)
        for step, order in ((2, world.germinate), (4, world.advance), (6, world.advance), (9, world.cull)):
            for _ in range(2000):
                if world.state.progress.step >= step and in_step(world):
                    break
                world.tick()
                if deaths and (draw.random() < 0.05 or not find(world, m.TrainerDied)):
                    world.crash_trainer()
            world.command(m.Pause())
            tick_until(world, lambda w=world: w.state.run.phase is st.Phase.PAUSED, "paused")
            order()
            tick_until(world, lambda w=world: not w.state.boundary.waiting, "the order acted")
            world.command(m.Resume())
        world.run()
        return world

    calm, troubled = run(deaths=False), run(deaths=True)
    print(f"seed {seed}: {len(find(troubled, m.TrainerDied))} deaths")
    assert find(troubled, m.TrainerDied)
    assert calm.state.boundary.digest == troubled.state.boundary.digest
    assert calm.state.seeds == troubled.state.seeds
    assert calm.state.architecture == troubled.state.architecture
    assert m.RunCompleted in {type(one) for one in troubled.events}
