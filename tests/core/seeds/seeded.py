"""The simulated run with slots for seeds: a trainer that moves them as the real one does, and loses them with it."""

from __future__ import annotations

import json

from msgspec.structs import replace

from tests.core.rated import RatedTrainer, RatedWorld
from tests.core.simulate import find
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.seeds.gates import GATES, GateLimits, SeedMeasure, judge
from tolariad.core.calc.seeds.ledger import GERMINATE
from tolariad.core.calc.seeds.stages import PLANTED, Stage, is_legal
from tolariad.core.state.run_state import capture, read_capture

SLOTS = (m.SlotFound("trunk", 2), m.SlotFound("neck", 5), m.SlotFound("head", 7))
BLUEPRINTS = ("bottleneck", "conv", "low_rank")
LIMITS = GateLimits(min_steps=1)


class SeededTrainer(RatedTrainer):
    """`stages` is a part of its state: each checkpoint holds it, `saved_stages` by the checkpoint's name.

    `sick`: slots whose seeds have gradients that are not finite, so they pass no gate. `not_finite`: those whose seeds
    have parameters that are not.
    """

    def __init__(self, *given, saved_stages, sick, **more):
        super().__init__(*given, **more)
        self.todo[0] = replace(self.todo[0], slots=SLOTS, blueprints=BLUEPRINTS)
        # Slot: stage, step of the move, number of the germination.
        self.stages: dict[str, tuple[Stage, int, int]] = {}
        self.saved_stages, self.sick = saved_stages, sick
        self.not_finite: set[str] = set()

    def stage(self, slot):
        return self.stages.get(slot, (Stage.DORMANT, 0, 0))[0]

    def measure(self, slot):
        stage, since, _ = self.stages.get(slot, (Stage.DORMANT, 0, 0))
        steps = self.step - since
        return SeedMeasure(
            slot=slot,
            stage=stage,
            alpha=1.0 if stage in (Stage.BLENDING, Stage.SHADOWING, Stage.PROBATIONARY) else 0.0,
            gradient_norm=0.5,
            learning_rate=0.01,
            steps_in_stage=steps,
            parameters=40 if stage in PLANTED else 0,
            dropped=steps if slot in self.sick else 0,
            drift=0.0,
            non_finite=4 if slot in self.not_finite else 0,
        )

    def _answer(self, order):
        if not isinstance(order, m.MoveSeed):
            super()._answer(order)
            return
        measured = self.measure(order.slot)
        if order.stage is Stage.GERMINATED:
            measured = replace(measured, parameters=40)
        refused = self._refused(order, measured)
        if not refused:
            self.repeat(order)
            self.applied += 1
        germinates = order.stage is Stage.GERMINATED and not refused
        self.todo.append(
            m.SeedMovedReport(
                order=order.cause,
                applied_before_step=self.step + 1,
                refused=refused,
                measure=None if refused else measured,
                example=(1, 8) if germinates else (),
                dtype="float32" if germinates else "",
                parameters_added=40 if germinates else 0,
            )
        )

    def _refused(self, order, measured):
        stage = self.stage(order.slot)
        if not is_legal(stage, order.stage):
            return f"slot {order.slot} is in {stage.name} and cannot move to {order.stage.name}"
        if order.stage is not Stage.GERMINATED and order.number != self.stages[order.slot][2]:
            return f"the order is for seed {order.number} of the run; the slot holds seed {self.stages[order.slot][2]}"
        gate = GATES.get(order.stage)
        return judge(gate, measured, LIMITS) if gate is not None else ""

    def repeat(self, order):
        if not isinstance(order, m.MoveSeed):
            super().repeat(order)
            return
        assert is_legal(self.stage(order.slot), order.stage), (order, self.stages)
        others = {slot: one for slot, one in self.stages.items() if slot != order.slot}
        new = {} if order.stage is Stage.DORMANT else {order.slot: (order.stage, self.step, order.number)}
        self.stages = others | new

    def _begin(self, order):
        if order.checkpoint is not None and order.checkpoint.id in self.saved_stages:
            self.stages = self.saved_stages[order.checkpoint.id]
        super()._begin(order)

    def _roll_back(self, to):
        self.stages = self.saved_stages[to.id]
        super()._roll_back(to)

    def _written(self, id_):
        self.saved_stages[id_] = self.stages
        return super()._written(id_)

    def _end_epoch(self, order):
        report = super()._end_epoch(order)
        grown = tuple(self.measure(slot) for slot, one in sorted(self.stages.items()) if one[0] in PLANTED)
        # Immediately before the end of the epoch.
        if grown and report is not None:
            epoch = m.SeedsMeasuredReport(epoch=self.done_epoch, seeds=grown)
            if not self.todo:
                self.todo.append(report)
                return epoch
            self.todo.insert(len(self.todo) - 1, epoch)
        return report


class SeededWorld(RatedWorld):
    """A world whose trainers have slots, and whose operator grows seeds in them."""

    def __init__(self, seed, **policy):
        self.saved_stages, self.sick = {}, set()
        super().__init__(seed, **{"blend_steps": 2, "embargo_epochs": 1, "deaths_max": 1000, **policy})

    def new_trainer(self, incarnation):
        given = incarnation, self.environment, self.accuracy, self.broken
        more = {"saved_stages": self.saved_stages, "sick": self.sick}
        return SeededTrainer(*given, saved=self.saved, owing=self.owing, **more)

    def germinate(self, slot="trunk", blueprint="bottleneck", **given):
        return self.command(m.SeedGerminate(slot=slot, blueprint=blueprint, **given))

    def advance(self, slot="trunk", **given):
        return self.command(m.SeedAdvance(slot=slot, **given))

    def cull(self, slot="trunk", **given):
        return self.command(m.SeedCull(slot=slot, **given))

    def stage(self, slot="trunk"):
        return self.state.seeds.seed(slot).stage

    def anything(self):
        if self.random.random() < 0.15:
            slot = self.random.choice([*(one.name for one in SLOTS), "nowhere"])
            order = self.random.choice(["germinate", "advance", "advance", "advance", "cull"])
            {"germinate": self.germinate, "advance": self.advance, "cull": self.cull}[order](slot, id=self._id())
        else:
            super().anything()


def moved_to(world, stage, slot="trunk"):
    """Let a seed germinate and grow up to this stage, with an update in each stage before it."""
    world.germinate(slot)
    for _ in range(500):
        seed = world.state.seeds.seed(slot)
        if seed.stage is stage:
            return world
        if seed.stage in PLANTED and world.state.progress.step >= seed.since_step and not waits(world, slot):
            world.advance(slot)
        world.tick()
    raise AssertionError(f"{slot} is in {world.stage(slot).name} and never came to {stage.name}")


def waits(world, slot):
    """Whether a move of the slot waits for its boundary."""
    return q.waiting_move(world.state, slot) is not None


def in_step(world):
    """Whether daemon and trainer must agree: it trains, and all that it said is recorded."""
    trainer, state = world.trainer, world.state
    return (
        trainer is not None
        and trainer.order is not None
        and state.trainer.began
        and not trainer.todo
        and not trainer.script
        and all(one.number <= trainer.applied for one in trainer.script_orders)
        and trainer.done_epoch >= trainer.order.epoch_finished
        and state.progress.rerun is None
        and state.rollbacks.open is None
    )


def carried_through(world, ticks, disturb, look, agrees, where):
    """Disturb a world, and look at every event. Return how often daemon and trainer were compared.

    At the end a capture holds the state, and no boundary order has ended twice.
    """
    seen = compared = 0
    for _ in range(ticks):
        if world.exit is not None:
            break
        disturb(world)
        for number, event in enumerate(world.events[seen:], seen + 1):
            look(event, f"{where}, event {number}: {event}")
        seen = len(world.events)
        if in_step(world):
            compared += 1
            agrees(world, f"{where}, event {seen}")
    assert read_capture(capture(world.state)) == world.state
    causes = [one.cause for one in find(world, m.OrderActed) + find(world, m.OrderAborted)]
    assert len(causes) == len(set(causes))
    return compared


def assert_agrees(world, where=""):
    """The trainer's stages are the journal's; the ledger has a germination for each module that is there."""
    known = {slot: (one.stage, one.germination) for slot, one in world.state.seeds.seeds.items()}
    assert known == {slot: (stage, number) for slot, (stage, _, number) in world.trainer.stages.items()}, where
    there = {}
    for change in world.state.architecture.changes:
        given = json.loads(change.arguments)
        there[given["slot"]] = given["number"] if change.name == GERMINATE else None
    held = {slot: one.germination for slot, one in world.state.seeds.seeds.items() if one.stage < Stage.CULLED}
    assert {slot: number for slot, number in there.items() if number is not None} == held, where
