"""A small run with slots for seeds, whose moves are ordered from a hook: each acts before the next update."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests import order_events
from tests.library.inside import ordered, state_of
from tests.library.small import CONFIG, loaders
from tests.recorded import events_of, of
from tests.waiting import wait_for
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.rollback.snapshots import SnapshotHandler
from tolariad.trainer.seeds import SeedSlot

EPOCHS = 3
# A short warm-up: one that is shortened by the end of the run depends on the step that the order was recorded at.
QUICK = {"blend_steps": 4, "embargo_epochs": 1, "warmup_epochs": 1, "gates": {"min_steps": 1}}
# After which step which order is given. The seed in `a` becomes a part of the model, that in `b` is culled.
PLAN = {
    2: m.SeedGerminate(slot="a", blueprint="bottleneck"),
    3: m.SeedAdvance(slot="a"),
    4: m.SeedGerminate(slot="b", blueprint="low_rank", parameters={"rank": 2.0}),
    5: m.SeedAdvance(slot="b"),
    6: m.SeedAdvance(slot="a"),
    10: m.SeedCull(slot="b"),
    13: m.SeedAdvance(slot="a"),
    15: m.SeedAdvance(slot="a"),
    18: m.SeedAdvance(slot="a"),
}
FREEING = (Stage.EMBARGOED, Stage.RESETTING, Stage.DORMANT)
# With snapshots, whatever the load: every step is durable before the next update, and `hashed_at_once` is called.
IN_STEP = {"snapshots": {"every": 1, "watch_steps": 1}, "journal": {"sync": "step"}}


def hashed_at_once(put=setattr):
    """Let training wait until a snapshot is hashed: the run then has the same ones on a slow machine as on a quick one.

    `put`: how the method is replaced, such as `monkeypatch.setattr`.
    """
    take = SnapshotHandler._take

    def taken(self, *given):
        take(self, *given)
        if self._thread is not None:
            self._thread.join()

    put(SnapshotHandler, "_take", taken)


def network():
    """Return a network with two slots."""
    torch.manual_seed(3)
    hidden = (nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), SeedSlot("a"), nn.Dropout(0.2))
    return nn.Sequential(*hidden, nn.Linear(24, 4), SeedSlot("b"))


class Gardener:
    """A task that gives the orders of a plan, and after a rollback those after its target again.

    `also` is called after each step, after its order. `given`: so many orders were given before, by another trainer.
    """

    def __init__(self, plan=PLAN, also=lambda step: None, given=0):
        self.plan, self.also = plan, also
        self.before = sorted(plan)[given - 1] if given else 0
        self.run: Tolaria | None = None
        self._last = 0

    def on_step_end(self, model, step):
        if step <= self._last:
            self.before = 0
        self._last = step
        if step in self.plan and step > self.before:
            for command in commands(self.plan[step]):
                self.give(command)
        self.also(step)

    def give(self, command):
        """Give an order, and wait until it is recorded and sent, so that it acts at the next boundary."""
        assert ordered(self.run, command), command
        self._wait(command.slot)

    def _wait(self, slot):
        wait_for(lambda: any(_slot(one.order) == slot for one in state_of(self.run).boundary.waiting))


class Steadfast(Gardener):
    """Gives each order of the plan once for the present line of the run, whoever trained before.

    An order that is missing at a step after its own is given there. `back`: (step, order): a rollback that is ordered
    once, in the first line of the run. `also` as of a Gardener, before the orders of the step.
    """

    def __init__(self, plan=PLAN, also=lambda step: None, back=None):
        super().__init__(plan, also)
        self.back = back
        self._steps = sorted(plan)

    def on_step_end(self, model, step):
        self.also(step)
        state = state_of(self.run)
        if state.progress.rerun is not None:
            return
        done = sum(one.seed.stage not in FREEING for one in state.seeds.moves)
        done += sum(getattr(one.order, "stage", Stage.DORMANT) not in FREEING for one in state.boundary.waiting)
        if done < len(self._steps) and self._steps[done] <= step:
            # If it is refused, it is given again after the next step.
            if ordered(self.run, self.plan[self._steps[done]]):
                self._wait(self.plan[self._steps[done]].slot)
            return
        going = state.rollbacks.open or state.rollbacks.asked
        if self.back and step >= self.back[0] and not (state.rollbacks.done or going):
            ordered(self.run, self.back[1])


def line_of(state, orders=PLAN):
    """Return the plan of a run that was never disturbed and has the moves of this one's line, seeds' numbers included.

    `orders`: the plan of this run. A rollback over a germination uses up
    its number. An order that its gate refuses does so, too.
    """
    plan, number = {}, 0
    moves = [one.seed for one in state.seeds.moves if one.seed.stage not in FREEING]
    for command, one in zip((orders[step] for step in sorted(orders)), moves, strict=True):
        at = one.since_step - 1
        if one.stage is Stage.GERMINATED:
            slots = (one.slot, "b" if one.slot == "a" else "a")
            missing = one.germination - 1 - number
            plan.setdefault(at - 1, []).extend(
                m.SeedGerminate(slot=slot, blueprint="low_rank", parameters={"none": 1.0}) for slot in slots[:missing]
            )
            number = one.germination
        plan.setdefault(at, []).append(command)
    return {at: given for at, given in plan.items() if given}


def commands(planned):
    """Return the orders of one step: one, or several in a list."""
    return planned if isinstance(planned, list) else [planned]


def _slot(order):
    return getattr(order, "slot", "")


def given_in(run_dir: Path) -> int:
    """Return how many orders of the plan the journal of an earlier start holds."""
    moves = of(events_of(run_dir), order_events.given(m.MoveSeed)) if (run_dir / "journal").exists() else []
    return sum(one.actor is None or one.actor.program != "tolariad" for one in moves)


def made(run_dir: Path, **options) -> Tolaria:
    """Return a run whose seeds are moved by orders only: the default policy is off."""
    return Tolaria(
        {"tolaria": {**CONFIG["tolaria"], "seeds": QUICK, "strategy": "none", **options}},
        run_dir=run_dir,
        accept_config=True,
    )


def train(run_dir: Path, task, *, model=None, epochs=EPOCHS, workers=0, **options):
    """Train a fresh network; return it."""
    model = network() if model is None else model
    task.run = made(run_dir, **options)
    assert task.run.train(model, *loaders(workers=workers), epochs, task=task).phase == "completed"
    return model
