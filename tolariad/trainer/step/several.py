"""A step of several updates, made by the task's `training_step`.

The order in a step: first comes the copy of what a forward pass changes. For each update follow its backward pass, its
numbers, in the first one the gate, the copy of its optimizer's state, the update. Then come one verdict on the whole
step, hook, moving average, report. If the verdict is to skip, every update of the step is undone.

Promises: a step is applied as a whole or not at all, and no update of it begins before the step before it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tolariad.core import messages as m
from tolariad.failpoints import reached
from tolariad.trainer.data.digest import of_several
from tolariad.trainer.data.feed import to_device
from tolariad.trainer.health.monitor import OF_THE_DETECTOR, CheckResult
from tolariad.trainer.step.gradients import add_gradients, drop_gradients
from tolariad.trainer.step.stepper import Stepper
from tolariad.trainer.step.undo import UpdateBackup
from tolariad.trainer.step.updates import Updates

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.measured import InFlight, Measured


class StepperOfUpdates(Stepper):
    """Makes steps of several updates. `updates`: those of the current step."""

    def __init__(self, setup: Setup, *given: Any, **more: Any) -> None:
        """As that of `Stepper`."""
        super().__init__(setup, *given, **more)
        self.updates = Updates(setup, self._before_update, self._after_update, self._audit.pass_over)
        self._undo = UpdateBackup()
        self._keeps = self._is_open = False

    def make(self, batches: Sequence[Any]) -> None:
        """Make the updates of one batch and report the step, or compare it if the journal already has it."""
        self.note(batches)
        if self.begin(len(batches)):
            found = self._stopwatch.of_task(compute_updates, self._setup, batches[0], self.updates)
            self.finish_updates(found, len(batches))

    def begin(self, batches: int) -> bool:
        """Begin a step. Return False if its batches are passed over."""
        self._undo.begin()
        self._is_open = False
        if not super().begin(batches):
            return False
        progress, step = self._progress, self.position.step + 1
        # The same updates must be left out in a re-run, although the configuration may have changed since.
        drops = self.rerun.skip_before(step) in OF_THE_DETECTOR if progress.rerunning else self._setup.watch.skips
        self._keeps = self._setup.watch.skips or progress.rerunning or self._setup.scaling is not None
        self.updates.begin(step, drops_unhealthy=drops)
        return True

    def finish_updates(self, found: Measured | InFlight, batches: int) -> None:
        """Judge and report the step whose updates were made, or undo them."""
        measured = None if self._setup.reads_late and not self._progress.rerunning else self._read(found)
        if measured is None or not self._skipped(measured, batches):
            if self._metrics.is_pending:
                self._metrics.send()
            self._complete(found, measured, batches)

    def add_gradients(self, setup: Setup, loss: torch.Tensor, parts: float, what: str) -> torch.Tensor:
        """Run the backward pass of one micro-batch of a loop: as the function of this name."""
        return add_gradients(setup, loss, parts, what)

    def of_sum(self, add_up: Callable[[], None]) -> None:
        """Let the gradients of several ranks be added up."""
        add_up()

    def of_leaves(self, digests: Sequence[int]) -> None:
        """Take the digest of the step's batches from those of all leaves: each rank has seen its own ones only."""
        self._data = of_several(digests)

    def give_up(self) -> bool:
        """Undo what was done of a step that is not finished. Return False if nothing of it was kept to go back to."""
        watch = self._setup.watch
        if not (watch.skips or self._progress.rerunning):
            return False
        if self._undo.put_back():
            self._audit.begin_anew()
        watch.backup.put_back()
        drop_gradients(self._setup.owners)
        self._metrics.drop()
        return True

    def _losses(self, loss: float) -> dict[str, float]:
        return {**self.updates.losses, "loss": loss}

    def _before_update(self, optimizer: Optimizer) -> None:
        self._stopwatch.of_ours(self._open, optimizer)

    def _open(self, optimizer: Optimizer) -> None:
        """Before the first update of a step pass the gate. Before each keep what it changes."""
        if not self._is_open:
            self._is_open = True
            self.settle()
            if not self._progress.rerunning:
                self._gate.wait()
        if self._keeps:
            self._undo.keep(optimizer)
        self._audit.before_update(self.position.step + 1)

    def _after_update(self) -> None:
        self._audit.after_update(self.position.step + 1)
        reached("step")

    def _skipped(self, measured: Measured, batches: int) -> bool:
        if super()._skipped(measured, batches):
            return True
        if self.updates.is_dropped:
            # The kernel lets the run go on after many such steps, but this one has updates that were not made.
            reason = m.SkipReason.NON_FINITE
            self._skip(batches, measured, reason, CheckResult(reason, reason))
        return self.updates.is_dropped

    def _skip(self, batches: int, measured: Measured, reason: m.SkipReason, judged: CheckResult) -> None:
        """Undo the updates of this step, and skip it."""
        if self._undo.put_back():
            # The audit must not take this for a change by other code.
            self._audit.begin_anew()
        if reason in OF_THE_DETECTOR and self.updates.is_dropped:
            judged = judged._replace(found=reason)
        super()._skip(batches, measured, reason, judged)


def compute_updates(setup: Setup, batch: Any, updates: Updates) -> Measured | InFlight:
    """Let the task make the updates of a batch. Return the numbers of the step."""
    if setup.training_step is None:
        raise RuntimeError("the task has no training_step; this is a defect, please report it")
    if setup.moves:
        batch = to_device(batch, setup.device)
    with setup.forward():
        returned = setup.training_step(setup.model, batch, updates)
    return updates.end(returned)
