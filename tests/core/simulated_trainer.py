"""A trainer without a process, true to the channel's rules, one small act at a time; and what its batches lead to."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from tests.core.facts import EPOCHS
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.messages.vocabulary import Report
from tolariad.core.state.run_state import RunState

STEPS_PER_EPOCH = 4
# The outcome of the batches of each epoch: an applied step, or one that is skipped, also at an epoch's end.
# Epochs after the third are trained only if a later end is ordered.
BATCHES = {1: "ss-ss", 2: "ssss-", 3: "--ssss", 4: "ssss", 5: "s-sss"}
ACCURACY = {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.25, 5: 0.15}
SKIPPED = sum(BATCHES[epoch].count("-") for epoch in range(1, EPOCHS + 1))
# The second one comes in the second epoch.
METRICS = ("twice", "later")
DAMAGED = {"file": "model.safetensors", "why": "it is damaged"}
OF_ANOTHER_SHAPE = {
    "file": "model.safetensors",
    "why": "first.weight: it holds (8, 4), the model has (4, 4)",
    "unfit": True,
}


class Trainer:
    """A trainer process, one small act at a time. `metric`: the name of what its validations measure."""

    metric = "accuracy"
    # Validate within an epoch after every so many steps; 0: not.
    every = 0

    def __init__(
        self, incarnation: int, context: m.Environment, accuracy: dict[int, float], broken: set[str] | None = None
    ) -> None:
        self.incarnation = incarnation
        # Checkpoints of another shape than this one's model, and those whose files are damaged.
        self.unfit: set[str] = set()
        self.broken = set() if broken is None else broken
        self.accuracy = accuracy
        self.over = False
        self.orders: deque[m.Effect] = deque()
        self.order: m.TrainFrom | None = None
        self.step = 0
        self.batch = 0
        self.script = deque()
        self.compared = self.skipped = 0
        self.held = False
        self.exited = False
        self.later: deque[m.BoundaryOrder] = deque()
        self.todo: deque[Report] = deque([m.ReadyReport(environment=context, parameters=9, steps_per_epoch=4)])
        self.wait_epoch = 0
        self.waits_within = False
        # The metrics of the validations within epochs that the journal has, by step.
        self.within: dict[int, dict[str, float]] = {}
        self.done_epoch = 0
        self.first_taken = False
        self.prepared: m.PrepareRollback | None = None

    def act(self, durable: RunState) -> Report | None:
        """One act: a waiting report, an order at a boundary, a step."""
        if self.todo:
            return self.todo.popleft()
        self._obey()
        waits = self.wait_epoch or self.waits_within
        if self.todo or self.exited or self.order is None or self.held or waits or self.prepared:
            return self.todo.popleft() if self.todo else None
        if not self.first_taken:
            return None
        if self.script:
            return self._rerun()
        return self._train(durable)

    def _obey(self) -> None:
        self._obey_orders()
        # An epoch that the journal says is over must be over here too: its plateaus come before a later order.
        # A validation is over before an order acts.
        if self.waits_within:
            return
        while (
            self.later and self.order is not None and not self.script and self.done_epoch >= self.order.epoch_finished
        ):
            self._answer(self.later.popleft())

    def _obey_orders(self) -> None:
        while self.orders and not self.exited:
            match self.orders.popleft():
                case m.TrainFrom() as order:
                    self._begin(order)
                case m.Hold():
                    self.held = True
                    self.todo.append(m.HeldReport(step=self.step, rerunning=bool(self.script)))
                case m.SetQuarantine() | m.GoOn():
                    pass
                case m.Release():
                    self.held = False
                case m.TakeCheckpoint(id=id_) as order if self._takes_none():
                    self.orders.append(order)
                    return
                case m.TakeCheckpoint(id=id_):
                    self.first_taken = True
                    self.todo.extend([self.copied(id_), self._written(id_)])
                case m.BoundaryOrder() as order:
                    self.later.append(order)
                case m.SetEnd() as order if self.order is None:
                    self.orders.append(order)
                    return
                case m.SetEnd(epochs=epochs, last_step=last):
                    self.order = replace(self.order, epochs=epochs, last_step=last)
                    self.wait_epoch = 0 if self.wait_epoch == -1 else self.wait_epoch
                case m.Continue():
                    self.wait_epoch = 0
                    self.waits_within = False
                case m.EndTraining():
                    self.over = True
                case m.PrepareRollback() as order:
                    self.prepared, self.held = order, False
                    self.todo.append(self._prepared(order))
                case m.CommitRollback():
                    self._roll_back(self.prepared.checkpoint)
                case m.AbortRollback():
                    self.prepared = None
                    self.todo.extend([m.TrainingEndedReport(step=self.step)] if self.wait_epoch == -1 else [])
                case m.ExitTrainer():
                    self.exited = True

    def _takes_none(self) -> bool:
        return not (self.wait_epoch or self.waits_within) and (self.order is None or bool(self.script))

    def _answer(self, order: m.BoundaryOrder) -> None:
        refused = self.carry_out(order)
        self.todo.append(m.BoundaryOrderReport(order=order.cause, applied_before_step=self.step + 1, refused=refused))

    def carry_out(self, order: m.BoundaryOrder) -> str:
        """Why the order is refused; "" if it acts. This one has no rates; see tests/core/rated.py."""
        return f"no {type(order).__name__} here"

    def _begin(self, order: m.TrainFrom) -> None:
        if order.checkpoint is not None and order.checkpoint.id in self.broken:
            self.todo.append(m.CheckpointUnusableReport(id=order.checkpoint.id, **DAMAGED))
            return
        if order.checkpoint is not None and order.checkpoint.id in self.unfit:
            self.todo.append(m.CheckpointUnusableReport(id=order.checkpoint.id, **OF_ANOTHER_SHAPE))
            return
        self.order = order
        self.step = order.checkpoint.step if order.checkpoint else 0
        self.batch = order.checkpoint.batch if order.checkpoint else 0
        self.first_taken = order.checkpoint is not None
        # A checkpoint at an epoch's end was taken after that epoch was done.
        self.done_epoch = order.checkpoint.epoch - 1 if order.checkpoint else 0
        id_ = order.checkpoint.id if order.checkpoint else ""
        self.first = self.step + 1
        self.todo.append(m.TrainingStartedReport(step=self.step, checkpoint=id_))

    def _prepared(self, order: m.PrepareRollback) -> Report:
        if order.checkpoint.id in self.broken:
            return m.RollbackRefusedReport(rollback=order.rollback, checkpoint=order.checkpoint.id, **DAMAGED)
        if order.checkpoint.id in self.unfit:
            return m.RollbackRefusedReport(rollback=order.rollback, checkpoint=order.checkpoint.id, **OF_ANOTHER_SHAPE)
        return m.RollbackPreparedReport(
            rollback=order.rollback, participants=("training",), seconds=0.1, checkpoint=order.checkpoint.id
        )

    def _roll_back(self, to: m.CheckpointRef) -> None:
        """Go to the target's place. Epochs after it are trained and reported again."""
        self.step, self.batch, self.done_epoch, self.wait_epoch = to.step, to.batch, to.epoch - 1, 0
        self.over = self.waits_within = False
        self.order = replace(
            self.order,
            epoch_started=to.epoch if to.batch else to.epoch - 1,
            epoch_validated=min(self.order.epoch_validated, to.epoch - 1),
            epoch_finished=min(self.order.epoch_finished, to.epoch - 1),
            step_to_keep=0,
            tokens_left=self.prepared.tokens_left,
        )
        took = {"commit_s": 0.1, "confirm_s": 0.1}
        self.todo.append(m.RolledBackReport(rollback=self.prepared.rollback, step=to.step, **took))
        self.prepared = None

    def copied(self, id_: str) -> m.StateCopiedReport:
        """The copy for this checkpoint or snapshot is made here."""
        return m.StateCopiedReport(id=id_, step=self.step, epoch=self.done_epoch + 1, batch=self.batch)

    def _written(self, id_: str) -> m.CheckpointWrittenReport:
        piece = m.Piece(name="model.safetensors", size=10, blake3="ab")
        return m.CheckpointWrittenReport(
            id=id_,
            step=self.step,
            epoch=self.done_epoch + 1,
            batch=self.batch,
            manifest="cd",
            pieces=(piece,),
            seconds=0.1,
        )

    def _rerun(self) -> Report | None:
        """Re-run the next batch: it must lead to what the script says."""
        if self._epoch_is_over():
            self._next_epoch()  # the journal holds something after it, so it holds this epoch's end
            if self.done_epoch == self.order.epoch_to_keep:
                self.wait_epoch = self.done_epoch
                return m.EpochReport(epoch=self.done_epoch, step=self.step)
        expected = self.script.popleft()
        skips = BATCHES[self.done_epoch + 1][self.batch] == "-"
        assert skips == isinstance(expected, m.StepSkipped), (self.done_epoch, self.batch, expected)
        self.batch += 1
        self.skipped += skips
        self.step += not skips
        assert expected.step == self.step + skips
        if not skips and self.step == self.order.step_to_keep:
            self.todo.append(self._validation(self.within[self.step]))
            self.waits_within = True
        if self.script:
            return None
        if not skips and self.step not in self.within:
            self._validate_within()
        compared = self.step - self.first + 1
        return m.RerunReport(first=self.first, last=self.step, compared=compared, skipped=self.skipped)

    def _validate_within(self) -> None:
        """After an applied step: validate if one is due, and wait for the word to go on."""
        epoch = self.done_epoch + 1
        if self.every and self.step % self.every == 0 and self.batch < len(BATCHES[epoch]):
            begun = m.ValidationBegun(epoch=epoch, step=self.step, batch=self.batch)
            self.todo.extend([m.Told(event=begun), self._validation({self.metric: self.accuracy[epoch]})])
            self.waits_within = True

    def _validation(self, metrics: dict[str, float]) -> m.ValidationReport:
        at = {"epoch": self.done_epoch + 1, "step": self.step, "batch": self.batch}
        return m.ValidationReport(metrics=metrics, samples=5, seconds=0.1, **at)

    def _epoch_is_over(self) -> bool:
        return self.done_epoch < len(BATCHES) and self.batch == len(BATCHES[self.done_epoch + 1])

    def _next_epoch(self) -> None:
        self.done_epoch += 1
        self.batch = 0

    def _train(self, durable: RunState) -> Report | None:
        order = self.order
        if order is None:
            return None
        if self._epoch_is_over():
            return self._end_epoch(order)
        is_last = order.last_step is not None and self.step >= order.last_step
        is_last = is_last or (order.tokens_left is not None and order.tokens_left <= 0)
        if self.done_epoch == order.epochs or self.over or is_last:
            self.wait_epoch = -1
            return m.TrainingEndedReport(step=self.step)
        epoch = self.done_epoch + 1
        if self.batch == 0 and epoch > order.epoch_started:
            self.order = replace(order, epoch_started=epoch)
            return m.Told(event=m.EpochStarted(epoch=epoch))
        if not q.gate_open(durable):
            return None
        if len(order.metrics) < min(epoch, len(METRICS)):
            self.order = replace(order, metrics=METRICS[: len(order.metrics) + 1])
            return m.MetricsNamedReport(names=METRICS[len(order.metrics) : len(order.metrics) + 1])
        self.batch += 1
        at = {"epoch": epoch, "batch": self.batch, "grad_norm": 2.0}
        if BATCHES[epoch][self.batch - 1] == "-":
            reason = m.SkipReason.OVERFLOW
            return m.StepSkippedReport(step=self.step + 1, loss=float("nan"), reason=reason, **at)
        self.step += 1
        self._validate_within()
        metrics = (2.0 * self.step, 0.5 * (self.step % 3))[: len(order.metrics)]
        return m.StepReport(step=self.step, loss=1.0 / self.step, lr=0.1, rates=5, metrics=metrics, **at)

    def _end_epoch(self, order: m.TrainFrom) -> Report | None:
        epoch = self.done_epoch + 1
        self._next_epoch()
        if epoch <= order.epoch_finished and epoch != order.epoch_to_keep:
            return None
        self.wait_epoch = epoch
        if epoch > order.epoch_validated:
            result = m.ValidationReport(
                epoch=epoch, step=self.step, metrics={self.metric: self.accuracy[epoch]}, samples=500, seconds=0.1
            )
            self.todo.extend([result, m.EpochReport(epoch=epoch, step=self.step)])
            return m.Told(event=m.ValidationBegun(epoch=epoch, step=self.step))
        return m.EpochReport(epoch=epoch, step=self.step)
