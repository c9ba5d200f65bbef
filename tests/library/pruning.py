"""A small run whose masks and compactions are ordered from a hook: each acts before the next update.

The program answers for the analysis: with the units of the plan, as an analysis would find
them. What lifts masks or leads back is a report of the safety window, which the hook sends in the trainer's name.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from tests import order_events
from tests.library.inside import ordered, state_of
from tests.library.seeds import commands
from tests.library.small import CONFIG, loaders
from tests.recorded import events_of, of
from tests.waiting import wait_for
from tolariad import Tolaria
from tolariad.attach import spawn, words
from tolariad.core import messages as m
from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.core.calc.pruning.verdict import PruningDecision, Trip, WindowAction
from tolariad.core.queries import pruning
from tolariad.daemon import analysing, program
from tolariad.library import attached, tolaria
from tolariad.trainer.loop import Trainer
from tolariad.trainer.pruning.plan import joined, plan_of
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.units import Role, TensorSlice, UnitGroup

EPOCHS, STEPS = 4, 8
ANSWER, TAKE = "the answer of an analysis: ", program.ProgramPolicy._take
ACTED = order_events.acted(m.MaskUnits), order_events.acted(m.ReleaseMasks), order_events.acted(m.CompactModel)
SHARES = [{"epoch": 0, "share": 0.5}]
QUICK = {
    "prune": {
        "enabled": True,
        "budgets": SHARES,
        "caps": SHARES,
        "safety": {"grace_steps": 0, "window_steps": 3, "failures": 1000},
    },
    "pruning_phase_transition_epoch": 0,
}
FULL = {**QUICK, "rollback": {"fast_path_enabled": False}}


class Mask(NamedTuple):
    """Mask these units. `gone`: those that earlier compactions have removed."""

    chosen: tuple
    gone: tuple = ()


class Lift(NamedTuple):
    """The window of the newest masks is tripped, and this follows."""

    action: WindowAction = WindowAction.RELEASE


class Compact(NamedTuple):
    """Remove all masked units."""


HEADS = "8.qkv"
FIRST = ("0", (2, 5, 11)), ("4", (0, 7)), (HEADS, (1,))
SECOND = ("0", (0,)), ("4", (3,)), (HEADS, (0,))
THIRD = ("0", (1, 20)), ("4", (3,)), (HEADS, (2,))
AFTER = ("0", (1,)), ("4", (4, 8)), (HEADS, (0,))
# After which step which order is given: masks, masks that are lifted, masks, a compaction, masks of the small model.
# The checkpoints of epochs lie at steps 8, 16, 24 and 32.
PLAN = {
    10: Mask(FIRST),
    14: Mask(SECOND),
    15: Lift(),
    17: Mask(THIRD),
    26: Compact(),
    29: Mask(AFTER, (FIRST, THIRD)),
}


class Attention(nn.Module):
    """Heads of two channels, over three places of four numbers."""

    def __init__(self):
        super().__init__()
        self.num_heads = 4
        self.qkv, self.proj = nn.Linear(4, 24), nn.Linear(8, 4)

    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (3, self.num_heads, 2)).permute(2, 0, 3, 1, 4)
        return self.proj(functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


def network():
    """Return a network with two groups of channels, and one of heads."""
    torch.manual_seed(3)
    hidden = (nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 12), nn.ReLU())
    return nn.Sequential(
        *hidden, nn.Linear(12, 12), nn.Unflatten(1, (3, 4)), Attention(), nn.Flatten(), nn.Linear(12, 4)
    )


def groups_of(model):
    """Return the groups of the network as `find_groups` does, without the second that importing it takes."""
    wide, narrow = (tuple((unit,) for unit in range(model[at].out_features)) for at in (0, 4))
    heads = range(model[8].num_heads)
    queries, keys, values = (
        tuple((2 * (part * len(heads) + head), 2 * (part * len(heads) + head) + 1) for head in heads)
        for part in range(3)
    )
    return (
        UnitGroup(
            name="0",
            kind=UnitKind.CHANNEL,
            channels=1,
            slices=(
                TensorSlice("0.bias", 0, wide, Role.PRODUCES),
                TensorSlice("0.weight", 0, wide, Role.PRODUCES),
                TensorSlice("1.bias", 0, wide),
                TensorSlice("1.weight", 0, wide),
                TensorSlice("4.weight", 1, wide, Role.READS),
            ),
            buffers=(TensorSlice("1.running_mean", 0, wide), TensorSlice("1.running_var", 0, wide)),
            norms=(TensorSlice("1", 0, wide),),
        ),
        UnitGroup(
            name="4",
            kind=UnitKind.CHANNEL,
            channels=1,
            slices=(
                TensorSlice("4.bias", 0, narrow, Role.PRODUCES),
                TensorSlice("4.weight", 0, narrow, Role.PRODUCES),
                TensorSlice("6.weight", 1, narrow, Role.READS),
            ),
        ),
        UnitGroup(
            name=HEADS,
            kind=UnitKind.HEAD,
            channels=2,
            slices=(
                *(
                    TensorSlice(f"{HEADS}.{name}", 0, rows, Role.PRODUCES)
                    for rows in (queries, keys, values)
                    for name in ("weight", "bias")
                ),
                TensorSlice("8.proj.weight", 1, queries, Role.READS),
            ),
            module="8",
            attributes=("num_heads",),
        ),
    )


@functools.cache
def found_by(mask):
    """Return what an analysis of the network finds."""
    with torch.random.fork_rng():
        model, example = network().eval(), (torch.zeros(12, 16),)
        total = sum(one.numel() for one in model.parameters())
        earlier = [plan_of(model, groups_of(model), dict(one), example) for one in mask.gone]
        if earlier:
            remove(model, joined(earlier, model).gone)
        plan = plan_of(model, groups_of(model), dict(mask.chosen), example)
    return m.PruneAnalyzed(
        cycle=0,
        decision=PruningDecision.GO,
        units=plan.units,
        plan=plan.text,
        sha256=plan.masks.sha256,
        channels=sum(len(plan.units[one.name]) * one.channels for one in groups_of(model)),
        total=44,
        # Some of them may be masked already; the trainer counts the others.
        pruned_parameters=plan.masks.count,
        total_parameters=total,
    )


class Live(Trainer):
    """The trainer of the run in this process. `more`: is called at the next boundary, which is then passed again."""

    newest: Live | None = None

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        Live.newest, self.more = self, []

    def _stop(self):
        super()._stop()
        while self.more:
            self.more.pop(0)()
            super()._stop()


class Prunes:
    """A task that gives the orders of a plan, and after a rollback those after its target again.

    The orders of one step may be a list: all of them act before the next update. An order that must wait, because the
    masks before it are still watched, is given again after the next step. `also` is called after each step, after its
    order. `given`: so many orders were given before, by another trainer. `cycles`: the numbers that the masks shall
    have, in their order.
    """

    def __init__(self, plan=PLAN, also=lambda step: None, given=0, cycles=()):
        self.plan, self.also, self.cycles = plan, also, list(cycles)
        self.due = sorted(plan)[given:]
        self.run: Tolaria | None = None
        self._last = 0

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        # Neither accuracy nor loss by name: so a window of these runs ends with its steps, before any validation.
        return {"cost": (functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1]))}

    def on_step_end(self, model, step):
        if step <= self._last:
            self.due = [one for one in sorted(self.plan) if one >= step]
        self._last = step
        if self.due and self.due[0] <= step and not self._is_rerunning:
            first, *others = commands(self.plan[self.due[0]])
            if self.give(first):
                self.due.pop(0)
                Live.newest.more = [functools.partial(self._give_too, one) for one in others]
        self.also(step)

    def _give_too(self, planned):
        """Give an order after another one has acted, at the same boundary."""
        assert self.give(planned)

    @property
    def _is_rerunning(self):
        return Live.newest._progress.rerunning

    def give(self, planned):
        """Give an order. Wait until it is recorded and sent, so that it acts at the next boundary. Return whether."""
        match planned:
            case Mask():
                if self.is_watched():
                    return False
                self.analyze(planned)
                assert ordered(self.run, m.PruneApply())
                kind = m.MaskUnits
            case Compact():
                if self.is_watched():
                    return False
                assert ordered(self.run, m.PruneCompact())
                kind = m.CompactModel
            case Lift(action):
                # The masks act, but that may not be recorded yet.
                wait_for(lambda: self.pruning.window is not None)
                self.trip(self.pruning.window.cycle, action)
                if action is WindowAction.ROLLBACK:
                    self.plan = {}  # rejected masks are never applied again
                    return True
                kind = m.ReleaseMasks
        wait_for(lambda: any(isinstance(one.order, kind) for one in state_of(self.run).boundary.waiting))
        # An order is recorded a moment before it is sent. What is answered after it was decided after it was sent.
        assert ordered(self.run, m.Note(text="sent"))
        return True

    def is_watched(self):
        """Return whether masks are watched still. If the report of the window is sent, wait for its record."""
        window, step = self.pruning.window, Live.newest.stepper.position.step
        if window is not None and step > window.until_step and Live.newest.setup.pruner._due is None:
            wait_for(lambda: self.pruning.window is None)
        return self.pruning.window is not None

    @property
    def pruning(self):
        return state_of(self.run).pruning

    def analyze(self, mask):
        """Order an analysis, and answer it. Cycles are spent until the next one has the number that is wanted."""
        wanted = self.cycles.pop(0) if self.cycles else 0
        while self.pruning.cycles + 1 < wanted:
            self.answer(why="it is not wanted")
        self.answer(found=found_by(mask))

    def answer(self, found=None, why=""):
        assert ordered(self.run, m.PruneAnalyze())
        cycle = self.pruning.cycles
        found = found and replace(found, cycle=cycle)
        reply = msgspec.json.encode(m.AnalysisReply(cycle=cycle, found=found, why=why)).decode()
        self.run._live._recorder.tell(words.Order(number=0, command=m.Note(text=ANSWER + reply)))
        wait_for(lambda: self.pruning.open is None)

    def trip(self, cycle, action):
        """Report that a limit is exceeded, as the trainer would."""
        trip = Trip(threshold="memory_usage_threshold", limit=0.9, measured=0.95, action=action)
        step = Live.newest.stepper.position.step
        Live.newest._reporter.report(m.PruneWatchReport(cycle=cycle, step=step, trips=(trip,), memory=0.95))


def _take_answers(policy, word):
    """In the recorder: take the answer of an analysis, which comes as a note."""
    if isinstance(word, words.Order) and isinstance(word.command, m.Note) and word.command.text.startswith(ANSWER):
        reply = word.command.text.removeprefix(ANSWER)
        policy._submit(msgspec.json.decode(reply, type=m.AnalysisReply))
    else:
        TAKE(policy, word)


def given_in(run_dir: Path) -> int:
    """Return how many orders of the plan the journal of an earlier start holds, on the branch that goes on."""
    given = before = 0
    for one in events_of(run_dir) if (run_dir / "journal").exists() else ():
        if isinstance(
            one,
            order_events.given(m.MaskUnits) | order_events.given(m.ReleaseMasks) | order_events.given(m.CompactModel),
        ):
            given += 1
        elif isinstance(one, m.RollbackBegun):
            # The next start completes it.
            before, given = given, sum(step < one.to_step for step in PLAN)
        elif isinstance(one, m.RollbackAborted):
            given = before
    return given


def wait_for_checkpoint(task):
    """Wait until the checkpoint that is being written is written, and the one that was reported is recorded.

    A checkpoint is reported at a boundary. So two steps after an epoch that of the epoch is recorded.
    """
    saver = Live.newest._saver
    wait_for(lambda: saver._job is None or saver._job.report is not None)
    if saver._job is None and saver.parent:
        wait_for(lambda: any(one.id == saver.parent for one in state_of(task.run).checkpoints.catalogue))


def made(run_dir: Path, **options) -> Tolaria:
    """Return a run that may be pruned, although nothing analyses it."""
    tolaria.require_prunable = lambda *given: None
    attached.Trainer = Live
    # Of the recorder, which is a fork of this process.
    analysing.Analysing.obey = lambda self, effect: None
    program.ProgramPolicy._take = _take_answers
    return Tolaria({"tolaria": {**CONFIG["tolaria"], **QUICK, **options}}, run_dir=run_dir, accept_config=True)


def train(run_dir: Path, task, *, model=None, epochs=EPOCHS, **options):
    """Train a fresh network; return it."""
    model = network() if model is None else model
    # An analysis here is of the model as it is, whatever checkpoint it names. So no checkpoint is too old for it.
    with mock.patch.object(pruning, "_is_outdated", return_value=False):
        # In the patch, which the recorder then has too.
        spawn.end_idle()
        task.run = made(run_dir, **options)
        assert task.run.train(model, *loaders(), epochs, task=task).phase == "completed"
    return model


def acted(run_dir: Path):
    """Return the events of orders that acted, in their order, on every branch."""
    return of(events_of(run_dir), *ACTED)
