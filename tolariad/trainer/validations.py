"""The validations of a run: after each epoch, and within it. Those that the journal has are not made again.

A validation within an epoch comes right after its step, before the boundary: no order acts and nothing is captured
between the two. At the boundary the trainer then waits until it is recorded, and takes a checkpoint if it is the best.

Promises: a re-run judges plateaus where the journal has a validation, whatever `validate.every_steps` says now.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.group import VAL_LOSS
from tolariad.trainer.step.validate import Metrics, validate

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.trainer.orders import Boundary, Link
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.stepper import Stepper


class Validations:
    """Makes and reports them. `metrics`: the results of the newest one after an epoch."""

    def __init__(
        self, setup: Setup, link: Link, boundary: Boundary, stepper: Stepper, order: Callable[[], m.TrainFrom]
    ) -> None:
        self._setup, self._reporter, self._boundary, self._stepper = setup, link.reporter, boundary, stepper
        self._order, self._every = order, setup.settings.validate.every_steps
        self.metrics = dict[str, float]()
        # The epoch and batch of a validation that was reported, and of which no word has come yet.
        self._told: tuple[int, int] | None = None
        # The step that was validated last within an epoch: a user's loop may have done that itself.
        self._done = -1

    def after_epoch(self, given: Metrics | None = None) -> None:
        """Validate the epoch in progress, or take the metrics that a user's loop has `given`."""
        epoch = self._stepper.position.epoch
        if epoch <= self._order().epoch_validated:
            self.metrics = self._stepper.rerun.metrics(epoch)
        else:
            self.metrics = self._made(given, 0)

    def is_called(self, before: int) -> bool:
        """Return whether one is due within the epoch, or was reported. `before`: the steps before the batch just made.

        This is asked after every step.
        """
        if self._told is not None:
            return True
        return bool(self._every or self._stepper.rerun.validates) and self._is_due(before)

    def _is_due(self, before: int) -> bool:
        at = self._stepper.position
        if at.step in (before, self._done):
            return False
        if self._stepper.rerun.within(at.step) is not None:
            return True
        if not self._every or at.step % self._every or self._setup.validation is None:
            return False
        return at.batch != self._setup.train.batches and not self._is_past(at.step)

    def _is_past(self, step: int) -> bool:
        """Return whether the run went on after `step` without a validation: a later one would come out of turn."""
        return step < self._order().durable_step or self._stepper.rerun.acts_at(step + 1)

    def within_epoch(self, given: Metrics | None = None) -> None:
        """Validate after the step that was just made, or take what a user's loop has `given`. Judge the plateaus."""
        self._stepper.settle()
        at = self._stepper.position
        self._done = at.step
        means = self._stepper.rerun.within(at.step)
        if means is None:
            if self._is_past(at.step):
                return
            means, self._told = self._made(given, at.batch), (at.epoch, at.batch)
        elif at.step == self._order().step_to_keep:
            self._report(Metrics(means, 0), at.batch, 0.0)
            self._told = at.epoch, at.batch
        if "loss" in means:
            self._setup.rates.judge({VAL_LOSS: means["loss"]})

    def begin_anew(self) -> None:
        """After a rollback: steps that are made again are validated again."""
        self._told, self._done = None, -1

    @property
    def is_done(self) -> bool:
        """Whether the step that was just made is validated."""
        return self._done == self._stepper.position.step

    @property
    def waits(self) -> bool:
        """Whether a validation within the epoch was reported, and the boundary has to wait for what it leads to."""
        return self._told is not None

    def wait(self) -> None:
        """At the boundary: return when that validation is recorded, and what it leads to is ordered."""
        if self._told is not None:
            self._boundary.wait_after_validation(*self._told)
            self._told = None

    def _made(self, given: Metrics | None, batch: int) -> dict[str, float]:
        at = self._stepper.position
        self._reporter.report(m.Told(event=m.ValidationBegun(epoch=at.epoch, step=at.step, batch=batch)))
        begun = time.perf_counter()
        if given is None:
            self._stepper.ready_to_validate()
        found = given or validate(self._setup, lambda: self._reporter.beat(Activity.VALIDATE))
        self._report(found, batch, time.perf_counter() - begun)
        return found.means

    def _report(self, found: Metrics, batch: int, seconds: float) -> None:
        at = self._stepper.position
        report = m.ValidationReport(
            epoch=at.epoch, step=at.step, metrics=found.means, samples=found.samples, seconds=seconds, batch=batch
        )
        self._reporter.report(report)
