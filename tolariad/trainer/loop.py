"""The training loop. What happens in a step, in this order:

boundary (orders are obeyed, a checkpoint may be taken) -> its micro-batches are taken -> forward and backward -> loss and
gradient norm come to the host (on a GPU they set out, and are read and reported behind the next step's backward pass, or
before an order is obeyed) -> the detector's verdict (where they are there; else when they are read) -> rates are written -> gate (the previous step's report is durable, nothing is frozen)
-> update -> hook -> moving average -> report. A step that the journal already holds takes no gate and makes no report; it
is compared. Gradients that overflowed, a spike and a loss that is not finite make no update, no step and no rate: only the
position moves on, and that is reported; of the latter two not even the forward pass leaves anything behind.

Promises: position, step and state change together, between two boundaries; nothing is captured in between.
It must not know: processes, sockets, the journal.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from tolariad.channel import Activity
from tolariad.core.vocabulary import checkpoints, learning_rate, steps, trainer
from tolariad.failpoints import reached
from tolariad.storage import CheckpointUnfit, CheckpointUnusable
from tolariad.trainer.callbacks import Callbacks
from tolariad.trainer.checkpoints.desk import CheckpointDesk
from tolariad.trainer.checkpoints.save import Saver
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.compiled import compiler_watched
from tolariad.trainer.lr.audit import Audit
from tolariad.trainer.lr.desk import RateDesk
from tolariad.trainer.made import Made
from tolariad.trainer.memory import memory_shares
from tolariad.trainer.orders import Orders
from tolariad.trainer.rerun import Rerun
from tolariad.trainer.rollback import RollbackCommitted, RollbackDesk, SnapshotDesk, standing_at
from tolariad.trainer.start import begin
from tolariad.trainer.step import drop_gradients, forward_backward, update
from tolariad.trainer.stopwatch import Stopwatch
from tolariad.trainer.validate import validate_run
from tolariad.trainer.watch import NOT_LOOKED_AT, OF_THE_DETECTOR, Judged, instability, overlaps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tolariad.channel import TrainerEnd
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step import Measured

# Of the journal: a checkpoint must leave it room to say that the disk is full.
_SEGMENTS_KEPT_FREE: Final = 3


class Trainer:
    """One built run, trained as the daemon orders."""

    def __init__(
        self, setup: Setup, end: TrainerEnd, run_dir: Path, run_id: str = "", *, ring: int | None = None
    ) -> None:
        """`ring`: the descriptor of the memory that snapshots lie in, where there is one."""
        self._setup = setup
        self._checkpoints, settings = run_dir / "checkpoints", setup.settings
        self._saver = Saver(
            setup,
            self._checkpoints,
            run_id,
            bytes_s=settings.checkpoint.throttle_mb_s * 1e6 if settings.checkpoint.throttle_mb_s else None,
            keep_free=_SEGMENTS_KEPT_FREE * settings.journal.segment_bytes,
        )
        self._stopwatch = Stopwatch(
            settings,
            setup.device,
            lambda: self._saver.held_bytes,
            shares=lambda: memory_shares(setup.model, setup.optimizer, setup.device, self._saver.held_bytes),
        )
        self._snapshots = SnapshotDesk(setup, ring)
        self._copies = CheckpointDesk(
            self._saver, self._snapshots, self._stopwatch, lambda: self._position, self._settle
        )
        self._orders = self._copies.orders = Orders(
            end,
            self._copies.obey,
            lambda order: self._desk.obey(order, self.step + 1),
            tend=self._copies.tend,
            tell=self._copies.tell,
        )
        self._callbacks = Callbacks(setup.task, setup.rates)
        self._desk = RateDesk(setup.rates, self._orders)
        self._audit = Audit(setup, self._desk.audit_differed)
        self._rollbacks = RollbackDesk(setup, self._orders, self._checkpoints, lambda: self._snapshots.slots)
        self._orders.roll_back, self._orders.snapshots = self._rollbacks.obey, self._snapshots.obey
        self._orders.standing = self._stopwatch.standing
        self._position = Position(step=0, epoch=1, batch=0)
        self._rerun = Rerun(None)
        self._unsettled: Made | None = None
        self._orders.before_obeying = self._settle
        self._order = checkpoints.TrainFrom(checkpoint=None, epochs=0, durable_step=0)

    @property
    def step(self) -> int:
        """The last applied step."""
        return self._position.step

    def run(self) -> None:
        """Report ready, train as ordered, and serve until ToldToExit is raised."""
        try:
            self._run()
        finally:
            self._saver.close()
            self._snapshots.close()

    def _run(self) -> None:
        setup = self._setup
        self._orders.report(
            trainer.ReadyReport(
                environment=setup.environment,
                parameters=setup.parameters,
                steps_per_epoch=setup.steps_per_epoch,
                notes=setup.notes,
                groups=setup.rates.groups,
            )
        )
        orders = self._orders
        with compiler_watched(orders.compiling, orders.compiled) if setup.settings.compile else nullcontext():
            self._start()
            while True:
                try:
                    self._train()
                except RollbackCommitted:
                    self._go_back()

    def _train(self) -> None:
        """From the position to the end, then orders until told to exit. Raises ToldToExit or RollbackCommitted."""
        while self._position.epoch <= self._order.epochs and not self._is_over:
            self._epoch()
        while True:
            self._orders.report(steps.TrainingEndedReport(step=self.step, tallies=self._stopwatch.taken()))
            self._orders.serve_until_exit()

    def _go_back(self) -> None:
        """Stand where the target stands, on a new branch; what was told of epochs behind it is told again."""
        self._unsettled = None
        self._stopwatch.begin()
        position, target, report, self._saver.parent = self._rollbacks.commit()
        # The kernel's own word waits for a boundary, and the next is the target's: what was captured there would be said to be
        # of the branch that was left. Of snapshots it sends none.
        for order in self._orders.checkpoints_left():
            self._saver.order(order)
        self._saver.abort(position.step, f"rollback {target.rollback}")
        self._snapshots.abort(position.step, f"rollback {target.rollback}")
        self._position = position
        self._rerun = Rerun(None)
        self._orders.rerunning = False
        self._order = standing_at(self._order, target.checkpoint, position)
        self._orders.rolled_back(report)

    # -- start ---------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Wait for the order to train and restore what it names; one that cannot be used is reported, and the next comes."""
        while True:
            self._order, script = self._orders.wait_for_start()
            try:
                self._restore(self._order)
                break
            except CheckpointUnusable as unusable:
                ref = self._order.checkpoint
                report = checkpoints.CheckpointUnusableReport(
                    id=ref.id if ref else "",
                    file=unusable.file,
                    why=unusable.why,
                    unfit=isinstance(unusable, CheckpointUnfit),
                )
                self._orders.report(report)
        self._rerun = Rerun(script)
        self._orders.rerunning = self._rerun.active
        id_ = self._order.checkpoint.id if self._order.checkpoint else ""
        self._orders.report(
            checkpoints.TrainingStartedReport(step=self.step, checkpoint=id_, rates=self._setup.rates.standing)
        )

    def _restore(self, order: checkpoints.TrainFrom) -> None:
        def each() -> None:
            self._orders.beat(Activity.RESTORE)
            reached("restore")

        # Before the first byte: a large file takes longer than whatever went on until now may take.
        self._orders.beat(Activity.RESTORE)
        begun = begin(self._setup, order, self._checkpoints, self._snapshots.slots, each)
        if begun is not None:
            self._position, self._saver.parent = begun.position, begun.parent
            self._orders.step = begun.position.step
            self._orders.applied_cause = max(self._orders.applied_cause, begun.applied_cause)

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def _epoch(self) -> None:
        """From the position to the epoch's end, its validation and the word to go on."""
        epoch = self._position.epoch
        self._orders.beat(Activity.DATA)
        batches = self._stopwatch.fed(self._setup.train.epoch(epoch, self._position.batch))
        self._stopwatch.begin()
        self._boundary()
        if epoch > self._order.epoch_started:
            self._orders.report(steps.EpochStartedReport(epoch=epoch))
        while not self._is_over and (group := tuple(islice(batches, self._setup.settings.accumulate))):
            self._step(group)
            self._boundary()
        self._settle()
        if self._is_over and self._position.batch < (self._setup.train.batches or math.inf):
            return
        self._stopwatch.trained()
        with self._stopwatch.apart():
            metrics = self._validated(epoch)
            self._hook("on_epoch_end", epoch, metrics)
        # A hook may leave gradients behind; a checkpoint taken now would not have them.
        self._setup.model.zero_grad(set_to_none=True)
        # Before the epoch is reported: a checkpoint taken while its word is awaited stands behind the plateaus.
        rates = self._setup.rates
        rates.end_epoch(epoch, {"val_loss": metrics["loss"]} if "loss" in metrics else rates.host_metrics)
        self._position = Position(step=self.step, epoch=epoch + 1, batch=0)
        self._repeat_orders()
        if epoch > self._order.epoch_finished or epoch == self._order.epoch_to_keep:
            self._orders.report(steps.EpochReport(epoch=epoch, step=self.step, tallies=self._stopwatch.taken()))
            self._orders.wait_for_continue(epoch)
            self._stopwatch.went_on()

    @property
    def _is_over(self) -> bool:
        """No further update is to be made, although epochs may be left."""
        orders, last = self._orders, self._order.last_step
        return orders.told_to_end or (last is not None and self.step >= last and not orders.rerunning)

    def _boundary(self) -> None:
        """Orders are obeyed: first those that acted here before, then what waits."""
        self._repeat_orders()
        if self._desk.regrouped:
            # Behind the report of the step that was made with the old ones.
            self._settle()
            self._desk.tell_groups(self.step + 1)
        self._orders.boundary()

    def _repeat_orders(self) -> None:
        """Orders of rates that acted here before act again, before any that waits."""
        epoch, orders = self._position.epoch, self._orders
        if self._rerun.rates:
            self._desk.repeat(self._rerun.rates_before(self.step + 1, epoch))
        orders.behind = epoch <= self._order.epoch_finished
        if self._order.tell_rates and not orders.rerunning and not orders.behind:
            self._order = replace(self._order, tell_rates=False)
            orders.report(learning_rate.RatesStandingReport(rates=self._setup.rates.standing))

    def _step(self, batches: Sequence[Any]) -> None:
        """One update from its micro-batches, gated and reported; or compared, where the journal holds it already."""
        setup, orders, watch = self._setup, self._orders, self._stopwatch
        step = self._position.step + 1
        if (orders.quarantined or orders.rerunning) and self._passed_over(len(batches)):
            return
        if setup.watch.skips or orders.rerunning:
            setup.watch.aside.keep()
        # Called by itself where nobody measures it: behind a step's arithmetic every call of ours finds the caches cold.
        if watch.calibrates:
            found = watch.of_task(forward_backward, setup, batches, step)
        else:
            found = forward_backward(setup, batches, step)
        measured = None if setup.reads_late and not orders.rerunning else found.read()
        if measured is not None and self._skipped(measured, len(batches)):
            return
        # The report of the step before, where its loss was read no sooner than now: this update waits for it.
        if self._unsettled is not None:
            self._settle()
        if not orders.rerunning:
            orders.gate()
        used = setup.rates.row
        self._audit.before_update(step)
        overflown = measured is not None and measured.overflow
        if watch.calibrates:
            watch.of_task(update, setup, skip=overflown)
        else:
            update(setup, skip=overflown)
        self._audit.after_update(step)
        watch.advance(setup.rates, self._position.epoch)
        reached("step")
        self._position = Position(step, self._position.epoch, self._position.batch + len(batches))
        orders.step = step
        self._hook("on_step_end", step)
        if setup.average is not None:
            setup.average.update()
        drop_gradients(setup.optimizer)
        if measured is None:
            self._unsettled = Made(found, self._position, used)
        else:
            self._report(measured, self._position, used)
        if not orders.rerunning:
            watch.stepped()

    def _report(self, measured: Measured, at: Position, used: tuple[float, ...]) -> None:
        """Report the step that ended there; or compare it, where the journal holds it already. `used`: its rates."""
        rates, rerunning = self._setup.rates, self._orders.rerunning
        # A re-run counts the loss that the journal has: the kernel judges plateaus by that one.
        rates.saw_loss(self._rerun.loss if rerunning else measured.loss)
        values = (at.step, at.epoch, at.batch, measured.loss, measured.grad_norm, used[0], rates.digest(at.step, used))
        if rerunning:
            self._compared(self._rerun.compare(steps.report_of(values)))
        else:
            self._orders.report_step(values)

    def _settle(self) -> None:
        """Report a step whose numbers were on their way, and judge it."""
        made = self._unsettled
        if made is None:
            return
        self._unsettled = None
        measured = made.found.read()
        self._report(measured, made.position, made.rates)
        verdict = self._setup.watch.judge(measured.loss, measured.grad_norm, made.rates[0])
        if verdict is not None:
            found = instability(verdict, made.position, self._setup.settings.accumulate)
            # Gated: what is to be done about it is known before another update is made of the same sickness.
            self._orders.report_gated(replace(found, late=True))

    def _skipped(self, measured: Measured, batches: int) -> bool:
        """Whether no update is made from these batches; then that is reported, or compared, already."""
        rerun = self._rerun if self._orders.rerunning else None
        judged = self._setup.watch.look(measured, rerun, self.step + 1, self._setup.rates.row[0])
        if judged.reason is not None:
            self._skip(batches, measured, judged.reason, judged)
        elif judged.verdict is not None and rerun is None:
            at = self._position
            made = Position(at.step + 1, at.epoch, at.batch + batches)
            self._orders.ask(instability(judged.verdict, made, batches))
        return judged.reason is not None

    def _passed_over(self, batches: int) -> bool:
        """Whether one of these batches is in quarantine, or was when the journal had them: they are not looked at."""
        orders, quarantined = self._orders, steps.SkipReason.QUARANTINED
        if orders.rerunning:
            is_one = self._rerun.skip_before(self.step + 1) is quarantined
        else:
            is_one = overlaps(orders.quarantined, self._position, batches)
        if is_one:
            self._settle()
            self._skip(batches, NOT_LOOKED_AT, quarantined, Judged(quarantined, quarantined))
        return is_one

    def _skip(self, batches: int, measured: Measured, reason: steps.SkipReason, judged: Judged) -> None:
        """No update from these batches: the position moves on, the step does not."""
        if reason in OF_THE_DETECTOR:
            self._setup.watch.aside.put_back()
        if reason is not steps.SkipReason.QUARANTINED:
            update(self._setup, skip=True)
        drop_gradients(self._setup.optimizer)
        at = self._position
        self._position = Position(at.step, at.epoch, at.batch + batches)
        report = steps.StepSkippedReport(
            step=at.step + 1,
            epoch=at.epoch,
            batch=self._position.batch,
            loss=measured.loss,
            grad_norm=measured.grad_norm,
            reason=reason,
            verdict=judged.verdict,
        )
        if self._orders.rerunning:
            self._compared(self._rerun.compare_skip(report, judged.found))
        else:
            self._orders.report_gated(report)

    def _compared(self, finished: checkpoints.RerunReport | None) -> None:
        """One more step of the script was compared; `finished` where it was the last one."""
        self._orders.beat(Activity.RERUN)
        reached("rerun")
        if finished is not None:
            self._orders.rerunning = False
            self._stopwatch.begin()
            # Gated: whether training may go on from here is for the kernel to say.
            self._orders.report_gated(finished)

    def _validated(self, epoch: int) -> dict[str, float]:
        """The metrics after `epoch`: of a pass over the validation data, or what the journal says of the one that was."""
        if epoch <= self._order.epoch_validated:
            return self._rerun.metrics(epoch)
        self._orders.report(steps.ValidationBegunReport(epoch=epoch, step=self.step))
        begun = time.perf_counter()
        found = validate_run(self._setup, lambda: self._orders.beat(Activity.VALIDATE))
        report = steps.ValidationReport(
            epoch=epoch, step=self.step, metrics=found.means, samples=found.samples, seconds=time.perf_counter() - begun
        )
        self._orders.report(report)
        return found.means

    def _hook(self, name: str, *arguments: Any) -> None:
        """Call one of the task's optional methods."""
        if self._callbacks.has(name):
            self._orders.beat(Activity.HOOK)
            self._stopwatch.of_task(self._callbacks.call, name, self._setup.model, *arguments)
