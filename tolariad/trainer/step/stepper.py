"""One training step, and what follows from its numbers. The order in a step:

1. Forward and backward pass of its micro-batches.
2. Loss and gradient norm are transferred to the host. On a GPU the transfer is asynchronous: they are read and reported
   after the next step's backward pass, or before an order is obeyed.
3. The detector's verdict: before the update if the numbers are there, otherwise when they are read.
4. The rates are written into the optimizer.
5. The gate: wait until the previous step's report is durable and the run is not frozen.
6. Update, hook, moving average, report.

A step that the journal already holds is compared instead: it passes no gate and makes no report. After an overflow of
the gradients, a spike or a loss that is not finite there is no update, step or rate. Only the position advances, and
that is reported. After a spike or a loss that is not finite, the effects of the forward pass are undone too.

Promises: position, step and state change together, between two boundaries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tolariad import failpoints
from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.data.digest import digest_of
from tolariad.trainer.health.monitor import NOT_COMPUTED, OF_THE_DETECTOR, CheckResult, instability, overlaps
from tolariad.trainer.health.stopwatch import SAMPLED
from tolariad.trainer.step.digesting import ParameterDigests
from tolariad.trainer.step.gradients import drop_gradients, forward_backward, update
from tolariad.trainer.step.measured import InFlight, Measured, PendingStep
from tolariad.trainer.step.rerun import Rerun
from tolariad.trainer.tasks.context import HookContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tolariad.trainer.health.stopwatch import Stopwatch
    from tolariad.trainer.lr.audit import Audit
    from tolariad.trainer.orders import Link
    from tolariad.trainer.setup import Setup


class Stepper:
    """Makes new steps, or repeats those of a script. `position`: the current position; `rerun`: the script, or None."""

    def __init__(
        self,
        setup: Setup,
        link: Link,
        stopwatch: Stopwatch,
        audit: Audit,
        *,
        hook: Callable[..., None],
        gives_context: bool = False,
    ) -> None:
        """`hook` calls one of the task's optional methods, by name. `gives_context`: on_step_end asks for a context."""
        self._setup = setup
        self._reporter, self._gate, self._progress = link.reporter, link.gate, link.progress
        self._stopwatch = stopwatch
        self.digests = ParameterDigests(setup, link)
        self._audit = audit
        self._hook = hook
        self._metrics = setup.metrics
        self._has_hook = True
        # Collected once: a part that does nothing after an update costs nothing in a step.
        self._followers = tuple(one.after_update for one in setup.parts if one.after_update is not None)
        self._gives_context = gives_context
        self.position = Position(step=0, epoch=1, batch=0)
        self.rerun = Rerun(None)
        self._unsettled: PendingStep | None = None
        # The digest of the batches of the step in progress.
        self._data = 0
        # Training ends after so many more tokens, of which the steps up to `_counted` have none; None: it does not.
        self._tokens_left: int | None = None
        self._counted = 0
        # Batches to skip.
        self._quarantined: tuple[m.Batches, ...] = ()
        link.inbox.register(m.SetQuarantine, self._set_quarantine)
        link.inbox.register(m.TrainFrom, self._begin_as)

    def _begin_as(self, order: m.TrainFrom) -> None:
        """Take over what the run has already: batches in quarantine, names of metrics."""
        self._quarantined = order.quarantined
        self._metrics.begin(order.metrics)
        self.count_tokens(order.tokens_left, order.durable_step)

    def count_tokens(self, left: int | None, after: int) -> None:
        """Count the tokens of steps after `after`. `left`: the number that ends training; None: do not count them."""
        self._tokens_left, self._counted = left, after

    @property
    def has_all_tokens(self) -> bool:
        """Return whether training ends here because of its tokens. The recorder finds the same in the journal."""
        return self._tokens_left is not None and self._tokens_left <= 0

    def _set_quarantine(self, order: m.SetQuarantine) -> None:
        """Skip these batches, from the next one on."""
        self._quarantined = order.batches

    def close(self) -> None:
        """Leave the model as it was before this trainer."""

    # -- where training stands -----------------------------------------------------------------------------------------

    def stand_at(self, position: Position) -> None:
        """Set the position that the current state belongs to."""
        self.position = position
        self._progress.reached(position.step)

    def begin_hooks(self, *, any_: bool) -> None:
        """`any_`: whether there is anything to call after a step. Without, a step is spared the call."""
        self._has_hook = any_

    def follow(self, script: bytes | None) -> None:
        """Repeat the steps of this script before any new one. None: there are no steps to repeat."""
        self.rerun = Rerun(script)
        if self.rerun.active:
            self._progress.begin_rerun()
            self.digests.begin_rerun()
        else:
            self._progress.end_rerun()
            self.digests.begin(self.position.step)

    def drop(self) -> None:
        """Drop a step that is not reported yet, because a rollback commits."""
        self._unsettled = None
        self.digests.drop()
        self._metrics.drop()
        # The rollback overwrites the parameters. The audit must not take this for a change by other code.
        self._audit.begin_anew()

    def ready_to_validate(self) -> None:
        """Get the model ready for a validation that comes next."""

    def fence(self) -> None:
        """Wait until the last step is reported and durable."""
        self.settle()
        self._gate.fence()

    # -- a step --------------------------------------------------------------------------------------------------------

    def make(self, batches: Sequence[Any]) -> None:
        """Make one update from its micro-batches and report it, or compare it if the journal already has it."""
        self.note(batches)
        if not self.begin(len(batches)):
            return
        step, watch = self.position.step + 1, self._stopwatch
        # If the step is not timed, call it directly: after its arithmetic the caches are cold, and every call is slow.
        if watch.times_task:
            found = watch.of_task(forward_backward, self._setup, batches, step)
        else:
            found = forward_backward(self._setup, batches, step)
        self.finish(found, len(batches))

    def note(self, batches: Sequence[Any]) -> None:
        """Take the digest of the micro-batches of the next step, before anybody can change them."""
        self._data = digest_of(batches)

    def begin(self, batches: int) -> bool:
        """Begin a step of so many micro-batches. Return False if they are passed over, without computing anything."""
        progress, watch = self._progress, self._setup.watch
        if (self._quarantined or progress.rerunning) and self._passed_over(batches):
            return False
        if watch.skips or progress.rerunning:
            watch.backup.keep()
        return True

    def finish(self, found: Measured | InFlight, batches: int) -> None:
        """Make the update from the gradients, whose numbers are `found`, or skip it; report or compare the step."""
        setup, progress, watch = self._setup, self._progress, self._stopwatch
        if setup.reads_late and not progress.rerunning:
            measured = None
        else:
            measured = found if type(found) is Measured else self._read(found)
        if measured is not None and self._skipped(measured, batches):
            return
        if self._metrics.is_pending:
            self._metrics.send()
        # First report the step before, if its loss has not been read yet: this update waits for that report.
        if self._unsettled is not None:
            self.settle()
        if not progress.rerunning:
            self._gate.wait()
        step, audit = self.position.step + 1, self._audit
        is_audited = audit.sampled is not None or step % audit.every == 0
        if is_audited:
            audit.before_update(step)
        overflown = measured is not None and measured.overflow
        if watch.times_task:
            watch.of_task(update, setup, skip=overflown)
        else:
            update(setup, skip=overflown)
        if is_audited:
            audit.after_update(step)
        self._complete(found, measured, batches)

    def _complete(self, found: Measured | InFlight, measured: Measured | None, batches: int) -> None:
        """Count and report the step whose update was made. `measured`: its numbers, if they were read already."""
        watch, at = self._stopwatch, self.position
        step = at.step + 1
        rates = self._setup.rates
        used = rates.advance(at.epoch) if rates.global_step % SAMPLED else watch.advance(rates, at.epoch)
        if failpoints.armed:
            failpoints.reached("step")
        self.position = Position(step, at.epoch, at.batch + batches)
        self._progress.reached(step)
        if self._gives_context:
            self._hook("on_step_end", step, context=self._context(found, used))
        elif self._has_hook:
            self._hook("on_step_end", step)
        if watch.times_task:
            watch.of_task(self._clear)
        else:
            self._clear()
        metrics, digests = self._metrics, self.digests
        if (step >= digests.due or self.position.batch == digests.last_batch) and not self._progress.rerunning:
            digests.take(step)
        if self._tokens_left is not None and step > self._counted:
            self._tokens_left -= metrics.tokens()
        if measured is None:
            given = None if metrics.is_empty else metrics.taken()
            self._unsettled = PendingStep(found, self.position, used, given, self._data)
        else:
            self._report(measured, self.position, used, () if metrics.is_empty else metrics.row(), self._data)
        if not self._progress.rerunning:
            watch.stepped()

    def _context(self, found: Measured | InFlight, used: tuple[float, ...]) -> HookContext:
        """Return what a hook may ask about the step that was just made."""
        at = self.position
        return HookContext(
            step=at.step,
            epoch=at.epoch,
            batch=at.batch,
            rates=dict(zip(self._setup.rates.names, used, strict=False)),
            _losses=lambda: self._losses(found.read().loss),
            _metrics=self._metrics.so_far,
            _to=self._metrics,
            _stages=self._setup.stages,
        )

    def _losses(self, loss: float) -> dict[str, float]:
        """Return the losses of the step by name."""
        return {"loss": loss}

    def _clear(self) -> None:
        """After an update: the parts that follow it do so, and the gradients go."""
        # Ask first: a loop over nothing takes twice as long as the question.
        if self._followers:
            for follow in self._followers:
                follow()
        drop_gradients(self._setup.owners)

    def _report(
        self, measured: Measured, at: Position, used: tuple[float, ...], metrics: tuple[float, ...], data: int
    ) -> None:
        """Report the step that ended `at`, or compare it if the journal already has it. `used`: its rates.

        `metrics`: the task's. In a re-run those of the journal count, and these are not compared. `data`: the digest of
        its batches.
        """
        rates, rerunning = self._setup.rates, self._progress.rerunning
        # In a re-run use the journal's loss: the kernel detects plateaus by it.
        rates.saw_loss(self.rerun.loss if rerunning else measured.loss)
        values = (at.step, at.epoch, at.batch, measured.loss, measured.grad_norm, used[0], rates.digest(at.step, used))
        if rerunning:
            after = self.digests.compared(self.rerun, at.step) if self.rerun.digests else None
            self._compared(self.rerun.compare(m.report_of(values, data=data), after))
        elif metrics:
            if self._metrics.new:
                self._reporter.report(m.MetricsNamedReport(names=self._metrics.unreported()))
            self._gate.report_step(values, metrics, data)
        else:
            self._gate.report_step(values, (), data)
        if self.digests.pending is not None:
            self.digests.tell()
        if self._setup.pruner.watches:
            self._setup.pruner.saw(at.step, measured.grad_norm, rerunning=rerunning)
            self._report_window()

    def _report_window(self) -> None:
        """Report the safety window of masks if that is due: before any checkpoint, but not in a re-run."""
        if not self._progress.rerunning and (due := self._setup.pruner.due()) is not None:
            self._reporter.report(due)

    def settle(self) -> None:
        """Report a step whose numbers were in flight, and judge it."""
        made = self._unsettled
        if made is None:
            return
        self._unsettled = None
        measured = self._read(made.found)
        metrics = made.metrics.read() if made.metrics is not None else ()
        self._report(measured, made.position, made.rates, metrics, made.data)
        verdict = self._setup.watch.judge(measured.loss, measured.grad_norm, made.rates[0])
        if verdict is not None:
            found = instability(verdict, made.position, self._setup.settings.accumulate, self._setup.watch)
            # Gated: make no further update until the kernel has decided.
            self._gate.report(replace(found, late=True))

    def _read(self, found: Measured | InFlight) -> Measured:
        """Return the numbers of a step. The wait for a device is the task's own time: the device computes then."""
        return self._stopwatch.of_task(found.read) if self._stopwatch.times_task else found.read()

    def _skipped(self, measured: Measured, batches: int) -> bool:
        """Skip the update if the verdict says so; report or compare it. Return whether it was skipped."""
        rerun = self.rerun if self._progress.rerunning else None
        judged = self._setup.watch.check(measured, rerun, self.position.step + 1, self._setup.rates.row[0])
        if judged.reason is not None:
            self._skip(batches, measured, judged.reason, judged)
        elif judged.verdict is not None and rerun is None:
            at = self.position
            made = Position(at.step + 1, at.epoch, at.batch + batches)
            self._gate.ask(instability(judged.verdict, made, batches, self._setup.watch))
        return judged.reason is not None

    def _passed_over(self, batches: int) -> bool:
        """Skip these batches without computing if one is in quarantine, or was so in the journal. Return whether."""
        quarantined = m.SkipReason.QUARANTINED
        if self._progress.rerunning:
            is_one = self.rerun.skip_before(self.position.step + 1) is quarantined
        else:
            is_one = overlaps(self._quarantined, self.position, batches)
        if is_one:
            self.settle()
            self._skip(batches, NOT_COMPUTED, quarantined, CheckResult(quarantined, quarantined))
        return is_one

    def _skip(self, batches: int, measured: Measured, reason: m.SkipReason, judged: CheckResult) -> None:
        """Make no update from these batches: advance the position, but not the step."""
        if reason in OF_THE_DETECTOR:
            self._setup.watch.backup.put_back()
        if reason is not m.SkipReason.QUARANTINED:
            update(self._setup, skip=True)
        drop_gradients(self._setup.owners)
        self._metrics.drop()
        at = self.position
        self.position = Position(at.step, at.epoch, at.batch + batches)
        report = m.StepSkippedReport(
            step=at.step + 1,
            epoch=at.epoch,
            batch=self.position.batch,
            loss=measured.loss,
            grad_norm=measured.grad_norm,
            reason=reason,
            verdict=judged.verdict,
        )
        if self._progress.rerunning:
            self._compared(self.rerun.compare_skip(report, judged.found))
        else:
            self._gate.report(report)

    def _compared(self, finished: m.RerunReport | None) -> None:
        """Handle a compared step of the script. `finished`: the report, if it was the last one."""
        self._reporter.beat(Activity.RERUN)
        failpoints.reached("rerun")
        if finished is not None:
            self._progress.end_rerun()
            self.digests.begin(self.position.step)
            self._stopwatch.begin()
            setup = self._setup
            if finished.first_difference is not None:
                finished = replace(finished, code=setup.code.late(setup.task))
            # Gated: the kernel decides whether training may continue from here.
            self._gate.report(finished)
            self._report_window()
