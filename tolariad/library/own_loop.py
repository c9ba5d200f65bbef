"""A training loop of the user's own, recorded: the iterators are the boundaries, and send the loop back.

    run = Tolaria("my.yaml").run(model, optimizer, train_loader)
    for epoch in run.epochs(10):
        for batch in run.batches():
            run.step(loss_of(model, batch))
        run.validated({"accuracy": accuracy(model)})

Promises: P1 to P3, as for `train`. The loop runs in the caller's thread, and all of tolariad's work for it is done in
`batches`, `epochs`, `step`, `update`, `stepped` and `validated`. A program that leaves the loop early loses nothing
that is durable: its next start continues as after a crash.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from tolariad.library.batches import Batches
from tolariad.library.leaving import close_at_exit, was_broken_off
from tolariad.library.loop_task import LoopMisused, LoopTask
from tolariad.library.own_step import LoopStep
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.health.stages import Scope, checked
from tolariad.trainer.step.fetch import EpochBegins
from tolariad.trainer.step.updates import checked_metrics
from tolariad.trainer.step.validate import Metrics

if TYPE_CHECKING:
    from types import CodeType, TracebackType

    from torch import Tensor

    from tolariad.library.result import TrainingResult
    from tolariad.trainer.loop import Trainer
    from tolariad.trainer.process.lifecycle import Steps

_log: Final = logging.getLogger(__name__)
_LEFT: Final = (
    "The program left its loop after step %d, before the end of the run. Its next start makes the steps after the last "
    "checkpoint again. To end with a checkpoint, call run.stop(). To have the text of an exception recorded, put the "
    "loop into `with run:`."
)

_BROKEN_OFF: Final = "the program left its loop, by break or return"


def _codes_of_caller() -> tuple[CodeType, ...]:
    """Return the code that called the function that calls this."""
    frame = inspect.currentframe()
    try:
        caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
        return (caller.f_code,) if caller is not None else ()
    finally:
        # A frame with a name for itself is freed by a collection only. The caller's would keep a loop that was left.
        del frame


class OwnLoop:
    """A run that a loop of the user's own trains. Made by `Tolaria.run`."""

    def __init__(
        self,
        begin: Callable[[int, Callable[[Trainer], Steps]], Steps],
        task: LoopTask,
        result: Callable[[], TrainingResult],
        stop: Callable[[str], bool],
        made: Callable[[Trainer], LoopStep] = LoopStep,
    ) -> None:
        """`made`: makes the steps of a trainer."""
        self._begin, self._task, self._result, self._stop, self._made = begin, task, result, stop, made
        self._is_held = self._is_left = False
        # The generator of `epochs`, held in a `with` block.
        self._loop: Generator[int, None, None] | None = None
        self._steps: Steps | None = None
        self._trainer: Trainer | None = None
        self._step: LoopStep | None = None
        # The micro-batches of the step that is due; () if a validation is due; None if the loop is sent back. At first
        # an EpochBegins: what the loop does before its batches comes before they are read.
        self._due: tuple[Any, ...] | EpochBegins | None = None
        self._is_over = False
        self._is_validated = False
        # What the loop gave to `validated` at the epoch's last batch.
        self._last_given: Metrics | None = None
        # In mid-epoch: undoes what the loop's code for the begin of the epoch does to kept objects and generators.
        self._put_back: Callable[[], None] | None = None
        self._values: dict[str, Any] = {}
        # The stages that were announced before the loop.
        self._before_loop: list[str] = []

    # -- before the loop -----------------------------------------------------------------------------------------------

    def keep(self, name: str, kept: Any) -> None:
        """Save the state of an object with every checkpoint, and restore it with every resume and rollback.

        The object has `state_dict()` and `load_state_dict(state)`, or is a generator of Python, NumPy or torch, or a
        dict. Lists, dicts and generators in a dict are restored in place; its other values are replaced. Call this
        before `epochs`. Raises LoopMisused.
        """
        if self._steps is not None:
            raise LoopMisused(f"keep({name!r}) was called within the loop; call it before run.epochs()")
        self._task.keep(name, kept)

    def __enter__(self) -> Self:
        """Record the exception that ends a loop in this block, as an exception of a task is recorded.

        Without the block only the end of the loop is recorded: a `for` statement does not tell its iterator why it is
        left.
        """
        self._is_held = True
        return self

    def __exit__(self, _kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._is_held, loop, self._loop = False, self._loop, None
        if loop is None:
            return
        if not isinstance(error, Exception):
            self._is_left = error is None
            loop.close()
            return
        try:
            loop.throw(error)
        except Exception as raised:
            if raised is not error:
                raise
        # Without the frames that it was thrown through.
        error.__traceback__ = traceback

    # -- the iterators -------------------------------------------------------------------------------------------------

    def epochs(self, epochs: int) -> Iterator[int]:
        """Yield the number of each epoch that is to be trained, up to `epochs`. After a rollback one comes again.

        Raises what `Tolaria.train` raises, and LoopMisused.
        """
        self._task.loop_codes = _codes_of_caller()
        loop = self._epochs(epochs)
        self._loop = loop if self._is_held else None
        close_at_exit(loop)
        return loop

    def _epochs(self, epochs: int) -> Generator[int, None, None]:
        if self._steps is not None:
            raise LoopMisused("run.epochs() is iterated over already; a run has one loop")
        self._steps = steps = self._begin(epochs, self._drive)
        self._is_over = False
        try:
            self._proceed()
            while not self._is_over:
                self._is_validated, self._last_given = False, None
                try:
                    yield self._running.epoch
                except GeneratorExit:
                    here = inspect.currentframe()
                    is_left = self._is_left or was_broken_off(here.f_back if here is not None else None)
                    # A frame with a name for itself is freed by a collection only.
                    del here
                    # If the run itself has ended with an exception, the program gets that.
                    if inspect.getgeneratorstate(steps) != inspect.GEN_CLOSED and not (is_left and self._stop_here()):
                        _log.warning(_LEFT, self._running.step)
                    raise
                except Exception as error:  # noqa: BLE001 - of the user's loop, thrown in by __exit__
                    self._within("epochs").thrown = error
                self._end_epoch()
        finally:
            self._steps = self._trainer = self._step = self._due = None
            steps.close()

    def batches(self) -> Batches:
        """Yield the batches of the epoch that are left, as the loader gives them. A rollback or a stop ends it early.

        Call `step` once for each, or `update` and then `stepped`. Raises LoopMisused otherwise. It has a length, how
        many are left, if the data has one.
        """
        trainer = self._trainer
        whole = trainer.setup.train.batches if trainer is not None else None
        at = trainer.stepper.position.batch if trainer is not None else 0
        left = None if whole is None or self._step is None else self._step.length(max(0, whole - at))
        return Batches(self._batches(), left)

    def _batches(self) -> Iterator[Any]:
        step = self._within("batches")
        if isinstance(self._due, EpochBegins):
            if self._put_back is not None:
                self._put_back()
            self._advance()
        while isinstance(self._due, tuple) and self._due and not self.interrupted:
            yield from step.batches(self._due)
            if step.thrown is None:
                self._advance()

    @property
    def batch(self) -> int:
        """The index in its epoch of the batch that was taken last, from 0: the same after a resume as before."""
        return self._within("batch").batch

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(
        self,
        loss: Tensor | float | None = None,
        *,
        closure: Callable[[], Any] | None = None,
        **metrics: float | Tensor,
    ) -> bool:
        """Run the backward pass, the gate and the update of a batch, and report the step.

        With `accumulate: N` the update comes with the last of N batches. `loss` has one element. If the loop has run
        the backward pass itself, those gradients are used, and `loss` is its number. `closure` is for optimizers that
        evaluate the loss themselves, such as LBFGS: it returns the loss, and may run the backward pass. With `loss` too
        that backward pass comes first, as optimizers of two passes want it. Return False if the update was skipped, or
        if the loop is sent back. The gradients are dropped. The step is recorded with `metrics`.
        """
        self._take(metrics, "step")
        return self._within("step").step(loss, closure, metrics)

    def update(
        self,
        name: str,
        loss: Tensor | None = None,
        *,
        closure: Callable[[], Any] | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Run the backward pass of `loss`, then a step of the optimizer `name`; then call `stepped` once for the batch.

        The first one waits until the step before is durable. All gradients are dropped. `closure`: as for `step`.
        """
        self._within("update").update(name, loss, closure=closure, retain_graph=retain_graph)

    def stepped(self, **metrics: float | Tensor) -> bool:
        """Report the step whose updates were made. A `loss` among the metrics is that of the step.

        Return False if the updates were undone, because the step is a spike or not finite.
        """
        self._take(metrics, "stepped")
        return self._within("stepped").stepped(metrics)

    # -- the end of an epoch -------------------------------------------------------------------------------------------

    def validated(self, metrics: Mapping[str, float | Tensor] | None = None, **more: float | Tensor) -> bool:
        """Give the metrics of a validation, by name: `loss` and `accuracy` are the known names.

        Call it after an epoch's batches, or within them after the step of a batch. Return False, and ignore them, if
        the loop is sent back, or stops. Raises LoopMisused.
        """
        step = self._within("validated")
        if self.interrupted:
            return False
        if self._is_validated or (self._due and self._running.validations.is_done):
            raise LoopMisused(f"run.validated() was called twice for one {'epoch' if self._is_validated else 'step'}")
        found = checked_metrics({**(metrics or {}), **more}, "validated(metrics): give")
        given = Metrics({name: float(value) for name, value in found.items()}, 0)
        if not self._due:
            step.guarded(self._running.validations.after_epoch, given)
            self._is_validated = True
        elif not step.is_between:
            raise LoopMisused("run.validated() was called amid a step: call it after the run.step() of a whole step")
        elif self._running.stepper.position.batch == self._running.setup.train.batches:
            # The epoch's own, unless another one follows: a loop may validate by its steps only.
            self._last_given = given
        else:
            step.guarded(self._running.validations.within_epoch, given)
        return not self.interrupted

    @property
    def interrupted(self) -> bool:
        """Whether the batches of this epoch ended before its end: the loop is sent back or stops. Skip validations."""
        return self._due is None or self._is_over or (self._step is not None and self._step.thrown is not None)

    def _end_epoch(self) -> None:
        """Make the end of the epoch, and go to the next one. Only here a rollback restores, after the epoch's code."""
        if not self.interrupted:
            if self._due:
                raise LoopMisused(
                    f"the loop left run.batches() within epoch {self._running.epoch}; take all batches of an epoch, "
                    "or end the run by run.stop() or by leaving both loops"
                )
            if not self._is_validated:
                self._within("epochs").guarded(self._running.validations.after_epoch, self._last_given)
        self._proceed()

    # -- for the user --------------------------------------------------------------------------------------------------

    def log(self, name: str, value: float | Tensor) -> None:
        """Record a number under a name with the step in progress; after `step` or `stepped`, with the next one."""
        self._take({name: value}, "log")
        if self._step is not None:
            self._step.log({name: value})

    def new_stage(self, why: str) -> None:
        """Announce a change that may make the loss jump, from the next step on: another objective, other data.

        The detector then learns the loss's new level, so that the jump is no finding. `why` says what changed. Call it
        where your program makes the change: before the loop, at an epoch's begin, or between two steps. If the program
        runs again, the same call changes nothing. Raises LoopMisused.
        """
        try:
            if self._trainer is None:
                self._before_loop.append(checked(why))
            elif not self.interrupted:
                scope = Scope.EPOCH if isinstance(self._due, EpochBegins) else Scope.HERE
                self._within("new_stage").guarded(self._running.stages.announce, why, scope)
        except SetupRefused as refused:
            raise LoopMisused(str(refused)) from refused

    @property
    def metrics(self) -> dict[str, float]:
        """The last numbers that were given to `step`, `stepped` and `log`, by name."""
        return {name: float(value) for name, value in self._values.items()}

    def stop(self) -> bool:
        """End the run at the next boundary, with a checkpoint: both iterators end there. False: it was refused."""
        return self._stop("run.stop")

    @property
    def result(self) -> TrainingResult:
        """The run at the end of the loop, as `train` returns it."""
        return self._result()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _drive(self, trainer: Trainer) -> Steps:
        if self._trainer is not None:
            # The next trainer restores a checkpoint: only when the epoch's code has run to its end.
            yield None
        self._trainer, self._step = trainer, self._made(trainer)
        for why in self._before_loop:
            trainer.setup.stages.announce(why, Scope.RUN)
        yield from trainer.flow()

    def _stop_here(self) -> bool:
        """End the run where the program has left its loop, with a checkpoint. Return False if that is not possible."""
        step, batches = self._within("epochs"), self._running.setup.train.batches
        if self._due and batches is not None and self._running.stepper.position.batch >= batches:
            return False  # The loop's code after the epoch's last batch has not run: a stop there would lose it.
        if step.thrown is not None or not step.give_up() or not self._stop(_BROKEN_OFF):
            return False
        while not self._is_over:
            if self._due == () and not self._is_validated:
                step.guarded(self._running.validations.after_epoch, self._last_given)
            self._advance()
        return True

    def _proceed(self) -> None:
        """Go to the next step or validation that is due, back through every rollback."""
        self._advance()
        while self._due is None and not self._is_over:
            self._advance()

    def _advance(self) -> None:
        """Go to the next step that is due, over the boundary between."""
        if self._steps is None:
            raise LoopMisused("the loop has ended")
        thrown = None
        if self._step is not None:
            thrown, self._step.thrown = self._step.thrown, None
        try:
            self._due = next(self._steps) if thrown is None else self._steps.throw(thrown)
        except StopIteration:
            self._due, self._is_over = None, True
        in_mid_epoch = isinstance(self._due, EpochBegins) and self._running.stepper.position.batch > 0
        self._put_back = self._task.remembered() if in_mid_epoch else None

    def _take(self, metrics: Mapping[str, Any], name: str) -> None:
        if metrics:
            self._values.update(checked_metrics(metrics, f"{name}(): metrics must be"))

    @property
    def _running(self) -> Trainer:
        if self._trainer is None:
            raise LoopMisused("the loop has ended")
        return self._trainer

    def _within(self, name: str) -> LoopStep:
        """Return the steps of the loop. Raises LoopMisused if there is no loop."""
        if self._step is None:
            raise LoopMisused(f"run.{name}() was called outside of `for epoch in run.epochs(...)`")
        return self._step
