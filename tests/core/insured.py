"""The simulated run with rises of the loss: a trainer whose weights may be sick, which compares states if it is told.

An epoch has sixty batches. Weights become sick at a batch, and what was copied after that is sick too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from tests.core import simulated_trainer
from tests.core.simulate import World
from tests.core.snapped import SnappedTrainer, SnappedWorld
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.detection.comparison import Losses
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict

LENGTH = 60
EPOCHS = 8
USUAL, HIGH = 0.5, 3.0
RISE = Verdict(Finding.SUSTAINED, Signal.LOSS, HIGH, USUAL, 2.0, 20)
# Mean losses of the present and the pinned weights: on the newest batches, and held out.
DAMAGED = m.Measured(newest=Losses(2.2, 0.5), held=Losses(2.3, 0.5), begin=2.3, usual=0.5)
POISONED = m.Measured(newest=Losses(2.3, 9.0), held=Losses(2.2, 0.2), begin=2.3)
CHANGED = m.Measured(newest=Losses(0.6, 0.7), held=Losses(0.2, 0.2), begin=2.3)
UNCLEAR = m.Measured(newest=Losses(0.6, 0.5), held=Losses(0.7, 0.2), begin=2.3)

Batch = tuple[int, int]


class InsuredTrainer(SnappedTrainer):
    """`world`: what its batches and comparisons lead to."""

    world: InsuredWorld
    compare: m.CompareStates | None = None
    quarantined: tuple[m.Batches, ...] = ()

    @property
    def place(self) -> Batch:
        return self.done_epoch + 1, self.batch

    def _obey_orders(self) -> None:
        kept = deque()
        for one in self.orders:
            match one:
                case m.CompareStates():
                    self.compare = one
                case m.SetQuarantine(batches=batches):
                    self.quarantined = batches
                case m.TakeCheckpoint(snapshot=m.CheckpointRef() as ref):
                    self.todo.append(self.world.written(one.id, ref))
                case _:
                    if isinstance(one, m.TrainFrom):
                        self.quarantined = one.quarantined
                    kept.append(one)
        self.orders = kept
        super()._obey_orders()
        stands = self.order is not None and not self.script and not self.prepared and not self.exited
        due = self.compare
        if due is not None and stands and self.place >= (due.epoch, due.batch) and not self.wait_epoch:
            self.compare = None
            epoch, batch = self.place
            report = m.ComparedReport(checkpoint=due.checkpoint.id, step=self.step, epoch=epoch, batch=batch)
            self.todo.append(replace(report, measured=self.world.measure(due)))

    def carry_out(self, order: m.BoundaryOrder) -> str:
        return ""

    def _roll_back(self, to: m.CheckpointRef) -> None:
        self.compare = None
        super()._roll_back(to)

    def _rerun(self):
        if self._epoch_is_over():
            self._next_epoch()
        expected = self.script.popleft()
        self.batch += 1
        if isinstance(expected, m.ScriptStep):
            self.step += 1
        else:
            self.skipped += 1
        if self.script:
            return None
        compared = self.step - self.first + 1
        return m.RerunReport(first=self.first, last=self.step, compared=compared, skipped=self.skipped)

    def _train(self, durable):
        epoch, batch = self.done_epoch + 1, self.batch + 1
        is_next = not self._epoch_is_over() and self.order.epoch_started >= epoch and q.gate_open(durable)
        if is_next and any(one.epoch == epoch and one.first <= batch <= one.last for one in self.quarantined):
            self.batch += 1
            at = {"epoch": epoch, "batch": batch, "loss": math.nan, "grad_norm": -1.0}
            return m.StepSkippedReport(step=self.step + 1, reason=m.SkipReason.QUARANTINED, **at)
        if is_next and (verdict := self.world.found((epoch, batch))) is not None:
            return m.InstabilityReport(
                verdict=verdict, step=self.step + 1, epoch=epoch, batch=batch, first_batch=batch, began=20
            )
        report = super()._train(durable)
        return replace(report, loss=self.world.loss((epoch, batch))) if isinstance(report, m.StepReport) else report


class InsuredWorld(SnappedWorld):
    """`rises`: where a rise is found, and in how many batches after it the losses are high. `says`: of comparisons."""

    def __init__(self, seed: int, rises: dict[Batch, int], *says: m.Measured, **policy: object) -> None:
        self.rises, self.says, self.told = rises, list(says), set[tuple[int, Batch]]()
        self.written_from: dict[str, m.CheckpointRef] = {}
        self.fails_to_write = False
        super().__init__(seed, **{"epochs": EPOCHS, "snapshot_every": 20, "snapshot_watch": 8, **policy})
        self.accuracy = dict.fromkeys(range(1, EPOCHS + 1), 0.5)

    def written(self, id_: str, ref: m.CheckpointRef):
        if self.fails_to_write:
            return m.CheckpointFailedReport(id=id_, why="no space left on device")
        piece = m.Piece(name="model.safetensors", size=10, blake3="ab")
        at = {"step": ref.step, "epoch": ref.epoch, "batch": ref.batch}
        return m.CheckpointWrittenReport(id=id_, manifest="cd", pieces=(piece,), seconds=0.1, orders=0, **at)

    def found(self, at: Batch) -> Verdict | None:
        """The finding at this batch, once on each branch."""
        key = (self.state.rollbacks.branches.living, at)
        if at not in self.rises or key in self.told or self.is_cured(at):
            return None
        self.told.add(key)
        return RISE

    def is_cured(self, at: Batch) -> bool:
        """Whether the loss is as usual on this branch."""
        return False

    def loss(self, at: Batch) -> float:
        if self.is_cured(at):
            return USUAL
        for first, count in self.rises.items():
            after = (at[0] - first[0]) * LENGTH + at[1] - first[1]
            if 0 <= after < count:
                return HIGH
        return USUAL

    def measure(self, _: m.CompareStates) -> m.Measured:
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]

    def new_trainer(self, incarnation: int) -> InsuredTrainer:
        made = InsuredTrainer(incarnation, self.environment, self.accuracy, self.broken)
        made.memory, made.garbled, made.world = self.memory, self.garbled, self
        made.todo[0] = replace(made.todo[0], steps_per_epoch=LENGTH)
        return made


def long_epochs(monkeypatch) -> None:
    """Epochs of sixty batches, none of which is skipped."""
    monkeypatch.setattr(simulated_trainer, "BATCHES", dict.fromkeys(range(1, EPOCHS + 1), "s" * LENGTH))


def run_on(world: World, is_so: Callable[[], object], ticks: int = 3000) -> None:
    """Let one thing after the other happen until it is so."""
    for _ in range(ticks):
        if is_so():
            return
        world.tick()
    raise AssertionError(f"never; the last were {[type(one).__name__ for one in world.events[-10:]]}")
