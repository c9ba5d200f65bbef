"""The training loop: train a run from start to end, epoch by epoch, as the daemon orders. `stepper` makes the steps.

An epoch: boundary -> step -> boundary -> ... -> validation -> hook -> the epoch's report -> the daemon's order to
continue. At a boundary orders are obeyed and checkpoints are taken.

The loop is a generator. It yields when a step or a validation is due, and `run` makes it with the task. A user's own
loop does that itself (`tolariad/library/own_loop.py`).

Promises: nothing is captured between two boundaries.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.failpoints import reached
from tolariad.processor_time import waited_s
from tolariad.storage import CheckpointUnfit, CheckpointUnusable
from tolariad.trainer.architecture.handler import ArchitectureHandler
from tolariad.trainer.checkpoints.handler import CheckpointHandler
from tolariad.trainer.checkpoints.paces import Paces
from tolariad.trainer.checkpoints.save import kept_free
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.checkpoints.start import begin
from tolariad.trainer.health.insurer import Insurer
from tolariad.trainer.health.memory import MemoryBudgetManager
from tolariad.trainer.health.stage_handler import StageHandler
from tolariad.trainer.health.stopwatch import Stopwatch
from tolariad.trainer.lr.audit import Audit
from tolariad.trainer.lr.handler import RateHandler
from tolariad.trainer.makers import Alone, Makers, stepper_of
from tolariad.trainer.orders import BoundaryOrders
from tolariad.trainer.parts.part import Trained
from tolariad.trainer.rollback import RollbackCommitted, RollbackHandler, SnapshotHandler, standing_at
from tolariad.trainer.seeds.handler import measured
from tolariad.trainer.step.fetch import EpochBegins, Fetch
from tolariad.trainer.step.validate import try_evaluate
from tolariad.trainer.tasks.callbacks import Callbacks
from tolariad.trainer.tasks.context import HookContext
from tolariad.trainer.torch_private import compiler
from tolariad.trainer.validations import Validations

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tolariad.channel import TrainerEnd
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.stepper import Stepper

Flow: TypeAlias = "Generator[tuple[Any, ...] | EpochBegins | None, None, None]"


class Trainer:
    """One built run, trained as the daemon orders."""

    stopwatch: Stopwatch

    def __init__(
        self,
        setup: Setup,
        end: TrainerEnd,
        run_dir: Path,
        run_id: str = "",
        *,
        ring: int | None = None,
        stepper: type[Stepper] | None = None,
        makers: Makers | None = None,
    ) -> None:
        """`ring`: the snapshot arena's descriptor. `stepper`: the one of a user's loop. `makers`: None: it is alone."""
        self.setup, self._is_loop = setup, stepper is not None
        self._checkpoints, settings = run_dir / "checkpoints", setup.settings
        make = makers or Alone(stepper or stepper_of(setup))
        link, throttle = make.link(end), settings.checkpoint.throttle_mb_s
        self._saver = make.saver(
            setup,
            self._checkpoints,
            run_id,
            paced=Paces(throttle, end.page, lambda: self.stopwatch),
            keep_free=kept_free(run_dir, settings.journal.segment_bytes),
        )
        self._snapshots = SnapshotHandler(setup, ring)
        memory = MemoryBudgetManager(setup, self._saver, self._snapshots, link.inbox)
        self.stopwatch = Stopwatch(
            settings,
            setup.device,
            memory.staged,
            shares=memory.shares,
            waited=lambda: waited_s((threading.get_native_id(), *end.page.threads)),
            ran=time.thread_time,
        )
        self._progress, self._reporter, self._inbox, self._gate = link.progress, link.reporter, link.inbox, link.gate
        self._orders = BoundaryOrders(setup.acted, link, self.stopwatch.adapted)
        self._rates = RateHandler(setup.rates, link, setup.task)
        self._callbacks = Callbacks(setup.task, setup.rates)
        audit = Audit(setup, self._rates.audit_differed)
        gives = self._callbacks.takes_context("on_step_end")
        self.stepper = make.stepper(setup, link, self.stopwatch, audit, hook=self._hook, gives_context=gives)
        self._architecture = ArchitectureHandler(setup, link, lambda: self.stepper.rerun)
        trained = Trained(
            link,
            position=lambda: self.stepper.position,
            regrouped=self._rates.tell_regrouped,
            reshaped=self._architecture.one_more,
            rewritten=audit.begin_anew,
        )
        for part in setup.parts:
            self._orders.obey_by(part.orders(trained))
        setup.ledger.notify(audit.begin_anew)
        self.stages = StageHandler(setup, link, self._orders, self.stepper)
        self._boundary = make.boundary(link, before_obeying=self.stepper.settle, standing=self.stopwatch.standing)
        CheckpointHandler(
            self._saver,
            self._snapshots,
            self.stopwatch,
            link,
            fence=self.stepper.fence,
            position=lambda: self.stepper.position,
            digested=self.stepper.digests.of_checkpoint,
        )
        self.validations = Validations(setup, link, self._boundary, self.stepper, lambda: self._order)
        self._rollbacks = RollbackHandler(setup, link, self._checkpoints, lambda: self._snapshots.slots)
        self._insurer = Insurer(setup, link, self._checkpoints, self.stepper.fence, is_loop=self._is_loop)
        self._order = m.TrainFrom(checkpoint=None, epochs=0, durable_step=0)
        self._inbox.register(m.SetEnd, self._set_end)
        self._fetch = Fetch(setup, self._reporter, self._stop)

    @property
    def step(self) -> int:
        """The number of the last applied step."""
        return self.stepper.position.step

    @property
    def epoch(self) -> int:
        """The epoch in progress."""
        return self.stepper.position.epoch

    def run(self) -> None:
        """Report ready, train the task as ordered, and serve until ToldToExit is raised."""
        with closing(self.flow()) as flow:
            due = next(flow)
            while True:
                try:
                    if due == ():
                        self.validations.after_epoch()
                    elif isinstance(due, tuple):
                        self.stepper.make(due)
                except RollbackCommitted as committed:
                    due = flow.throw(committed)
                else:
                    due = next(flow)

    def flow(self) -> Flow:
        """Yield the micro-batches of each due step, () for a validation, None before a rollback, EpochBegins.

        Raises ToldToExit at the end. Throw RollbackCommitted in if a step or a validation raises it.
        """
        try:
            yield from self._flow()
        finally:
            if tallies := self.stopwatch.taken():
                self._reporter.report(m.BudgetsReport(tallies=tallies))
            self.stepper.close()
            self._saver.close()
            self._snapshots.close()
            for data in (self.setup.train, self.setup.validation):
                if data is not None:
                    data.end_workers()

    def _flow(self) -> Flow:
        setup, reporter = self.setup, self._reporter
        reporter.report(
            m.ReadyReport(
                environment=setup.environment,
                parameters=setup.parameters,
                steps_per_epoch=setup.steps_per_epoch,
                notes=setup.notes,
                groups=setup.rates.groups,
                slots=tuple(m.SlotFound(name, one.slot.layer_depth) for name, one in setup.garden.plots.items()),
                blueprints=setup.garden.blueprints,
                sources=setup.garden.sources,
                code=setup.code.at_start(setup.task),
                libraries=setup.code.libraries(),
            )
        )
        with compiler.watched(reporter.compiling, reporter.compiled) if setup.settings.compile else nullcontext():
            self._start()
            while True:
                try:
                    yield from self._train()
                except RollbackCommitted:
                    # A user's loop still runs to the end of its epoch's code. What that changes is then restored too.
                    yield None
                    self._go_back()

    def _train(self) -> Flow:
        """Train from the position to the end, then serve orders. Raises ToldToExit or RollbackCommitted."""
        while True:
            while not self._is_at_end:
                yield from self._epoch()
            self._reporter.report(m.TrainingEndedReport(step=self.step, tallies=self.stopwatch.taken()))
            # The daemon ignores this report during a rollback: send it again after that, or train to a later end.
            self._boundary.serve_until_exit(lambda: (self._rollbacks.given_up, self._is_at_end))

    def _go_back(self) -> None:
        """Continue at the target, on a new branch. Epochs after the target are reported again."""
        self.stepper.drop()
        self._insurer.drop()
        self.stopwatch.begin()
        position, target, report, parent = self._rollbacks.commit()
        self._saver.descend_from(parent)
        # Give up the checkpoints of the abandoned branch here. The kernel's order to do so waits for a boundary, and
        # the next one is the target's. A capture there would be recorded as of the old branch. For snapshots there is
        # no order.
        for order in self._boundary.leave_branch():
            self._saver.order(order)
        self._saver.abort(position.step, f"rollback {target.rollback}")
        self._snapshots.abort(position.step, f"rollback {target.rollback}")
        self.stepper.stand_at(position)
        self.stepper.count_tokens(target.tokens_left, position.step)
        self.stepper.follow(None)
        self.stages.go_back()
        self._begin_architecture()
        self.validations.begin_anew()
        self._order = standing_at(self._order, target.checkpoint, position)
        # Gated: no update may begin before this position is durable.
        self._gate.report(report)

    # -- start ---------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Wait for the order to train and restore its checkpoint. Report an unusable one; another order follows."""
        while True:
            self._order, script = self._boundary.wait_for_start()
            try:
                self._restore(self._order)
                break
            except CheckpointUnusable as unusable:
                ref, unfit = self._order.checkpoint, isinstance(unusable, CheckpointUnfit)
                id_, file, why = ref.id if ref else "", unusable.file, unusable.why
                self._reporter.report(m.CheckpointUnusableReport(id=id_, file=file, why=why, unfit=unfit))
        if self._order.checkpoint is None and not self._order.durable_step:
            self._fetch.check()
            try_evaluate(self.setup, lambda: self._reporter.beat(Activity.VALIDATE))
        self._fetch.tell_findings()
        self.stepper.follow(script)
        self.stages.follow(self._order)
        self._begin_architecture()
        id_ = self._order.checkpoint.id if self._order.checkpoint else ""
        self._reporter.report(m.TrainingStartedReport(step=self.step, checkpoint=id_, rates=self.setup.standing))

    def _begin_architecture(self) -> None:
        self._architecture.begin()
        self.stepper.begin_hooks(any_=self._callbacks.has("on_step_end") or self._architecture.is_on)

    def _restore(self, order: m.TrainFrom) -> None:
        def each() -> None:
            self._reporter.beat(Activity.RESTORE)
            reached("restore")

        # Announce it before reading: a large file takes longer than the previous activity's timeout.
        self._reporter.beat(Activity.RESTORE)
        begun = begin(self.setup, order, self._checkpoints, self._snapshots.slots, each)
        if begun is not None:
            position, parent = begun
            self.stepper.stand_at(position)
            self._saver.descend_from(parent)

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def _epoch(self) -> Flow:
        """Train to the epoch's end, validate, wait for the order to continue. A loop stops after its own code there."""
        epoch = self.epoch
        self.stopwatch.begin()
        self._stop()
        if epoch > self._order.epoch_started:
            self._reporter.report(m.Told(event=m.EpochStarted(epoch=epoch)))
            # A later end may be ordered when training has ended within this epoch, which then continues.
            self._order = replace(self._order, epoch_started=epoch)
        yield EpochBegins()
        batches = self.stopwatch.fed(self._fetch.batches(epoch, self.stepper.position.batch))
        self.stopwatch.begin()
        while not self._is_over and (group := self._fetch.of_step(batches)):
            before = self.stepper.position.step
            yield group
            if self.validations.is_called(before):
                with self.stopwatch.standing():
                    self._validate_within()
            if self._insurer.order is not None:
                self._insurer.saw(group, self.step)
            if not (self._is_loop and self.stepper.position.batch == self.setup.train.batches):
                self._stop()
        self.stepper.settle()
        if self._is_over:
            if self.stepper.position.batch < (self.setup.train.batches or math.inf):
                return
            next(batches, None)  # the epoch is at its end all the same, and a sampler may still draw there
        self.stopwatch.trained()
        with self.stopwatch.apart():
            yield ()
            metrics = self.validations.metrics
            self._hook("on_epoch_end", epoch, metrics, epoch_ended=epoch, context=self._epoch_context(epoch, metrics))
        self.setup.rates.tell_schedulers()
        if self._architecture.has_news:
            self._architecture.tell()
        # A hook may leave gradients; a checkpoint taken now would not contain them.
        self.setup.model.zero_grad(set_to_none=True)
        # Before the report: a checkpoint taken while the trainer waits for the order must include the plateaus.
        rates = self.setup.rates
        rates.end_epoch(epoch, {"val_loss": metrics["loss"]} if "loss" in metrics else rates.host_metrics)
        self.stepper.stand_at(Position(step=self.step, epoch=epoch + 1, batch=0))
        self._repeat_orders()
        if self.setup.garden.active and epoch > self._order.epoch_finished:
            self._reporter.report(m.SeedsMeasuredReport(epoch=epoch, seeds=measured(self.setup, self.step)))
        if epoch > self._order.epoch_finished or epoch == self._order.epoch_to_keep:
            whole, tallies = self._callbacks.epoch_metrics(), self.stopwatch.taken()
            self._reporter.report(m.EpochReport(epoch=epoch, step=self.step, tallies=tallies, metrics=whole))
            self._boundary.wait_for_continue(epoch)
            self.stopwatch.went_on()

    @property
    def _is_at_end(self) -> bool:
        """Nothing is left to train."""
        return self.stepper.position.epoch > self._order.epochs or self._is_over

    def _set_end(self, order: m.SetEnd) -> None:
        """Train up to there instead."""
        self._order = replace(self._order, epochs=order.epochs, last_step=order.last_step)

    @property
    def _is_over(self) -> bool:
        """Return whether no further update is to be made, although epochs may be left."""
        last = self._order.last_step
        is_last = self.stepper.has_all_tokens or (last is not None and self.step >= last)
        return self._boundary.told_to_end or (is_last and not self._progress.rerunning)

    def _stop(self) -> None:
        """Obey orders: first repeat those of the re-run that acted at this boundary, then the pending ones."""
        self._repeat_orders()
        if self._architecture.waiting and self._architecture.has_news:
            self.stepper.settle()
            self._architecture.tell()
        if self._rates.regrouped:
            # First report the step that was made with the old rates.
            self.stepper.settle()
            self._rates.tell_groups(self.step + 1)
        if self._insurer.order is not None:
            self._insurer.at_boundary(self.stepper.position)
        self._boundary.stop()

    def _repeat_orders(self) -> None:
        """Apply again the boundary orders that the journal has here, before any pending one. Seeds stand here first."""
        epoch, progress, garden = self.stepper.position.epoch, self._progress, self.setup.garden
        if garden.attends:
            garden.stand_at(self.step, self.stepper.position.batch)
        if self.stepper.rerun.orders and (due := self.stepper.rerun.orders_before(self.step + 1, epoch)):
            self.stepper.settle()  # as when they were obeyed: the detector has judged the last step
            self._orders.repeat(due)
        if progress.is_behind != (epoch <= self._order.epoch_finished):
            progress.compare_epochs(epoch, self._order.epoch_finished)
        if self._order.tell_rates and not progress.rerunning and not progress.is_behind:
            self._order = replace(self._order, tell_rates=False)
            self._reporter.report(m.RatesStandingReport(rates=self.setup.standing))
        self.stages.tend()

    def _validate_within(self) -> None:
        """Validate within the epoch, unless a user's loop has done that; then wait until it is recorded."""
        if not self.validations.waits:
            self.validations.within_epoch()
        self.validations.wait()

    def _epoch_context(self, epoch: int, metrics: dict[str, float]) -> HookContext | None:
        """Return what on_epoch_end may ask about the epoch, if it asks for something."""
        if not self._callbacks.takes_context("on_epoch_end"):
            return None
        return HookContext.of_epoch(self.setup, self.stepper.position.step, epoch, self.stepper.position.batch, metrics)

    def _hook(self, name: str, *arguments: Any, epoch_ended: int = 0, context: HookContext | None = None) -> None:
        """Call one of the task's optional methods.

        `epoch_ended`: the epoch whose validation has just ended, or 0. `context` is for a method that asks for it.
        """
        has, grows, before_step = self._callbacks.has(name), self._architecture.is_on, self.stepper.position.step + 1
        if grows:
            self._architecture.before_hook(before_step, epoch_ended)
        if has:
            self._reporter.beat(Activity.HOOK)
            call = self._callbacks.call if context is None else partial(self._callbacks.call, context=context)
            self.stopwatch.of_task(call, name, self.setup.model, *arguments)
        if grows:
            self._architecture.after_hook(before_step, epoch_ended)
