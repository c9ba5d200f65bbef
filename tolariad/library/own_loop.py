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

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, ParamSpec

import torch
from msgspec.structs import replace

from tolariad.core.settings.optimization import LearningRate
from tolariad.core.settings.rules import with_implied_warmup
from tolariad.trainer.errors import SetupRefused, ToldToExit
from tolariad.trainer.rollback import RollbackCommitted
from tolariad.trainer.step.gradients import add_gradients, numbers_of, scalar
from tolariad.trainer.step.several import StepperOfUpdates
from tolariad.trainer.step.updates import checked_metrics
from tolariad.trainer.step.validate import Metrics
from tolariad.trainer.tasks.given import GivenTask

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tolariad.core.settings.model import Settings
    from tolariad.library.tolaria import TrainingResult
    from tolariad.trainer.loop import Trainer
    from tolariad.trainer.process.lifecycle import Steps
    from tolariad.trainer.setup import Setup

_log: Final = logging.getLogger(__name__)
_Given = ParamSpec("_Given")
_LEFT: Final = (
    "The program left its loop after step %d, before the end of the run. Its next start makes the steps after the last "
    "checkpoint again. To end with a checkpoint, call run.stop()."
)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class LoopMisused(RuntimeError):
    """A call of the loop is missing, or comes at the wrong place. The text says which, and what to do."""


class LoopTask(GivenTask):
    """The task of a loop of the user's own: its state is that of the kept objects."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.kept: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each kept object, and of the program's own task."""
        own = getattr(self._task, "state_dict", None)
        kept = {name: one.state_dict() for name, one in self.kept.items()}
        return {"kept": kept, "task": own() if callable(own) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises SetupRefused if an object is missing."""
        if state.keys() != {"kept", "task"}:
            raise SetupRefused("the checkpoint was written by Tolaria.train with a task; continue the run by train")
        if added := [name for name in self.kept if name not in state["kept"]]:
            _log.warning("the checkpoint holds no %s: what is kept under this name stays as it is", ", ".join(added))
        if missing := [name for name in state["kept"] if name not in self.kept]:
            raise SetupRefused(
                f"the checkpoint holds {', '.join(missing)}: call run.keep({missing[0]!r}, ...) before run.epochs(), "
                "as the program did that wrote it"
            )
        for name, held in state["kept"].items():
            self.kept[name].load_state_dict(held)
        if state["task"] is not None:
            self._task.load_state_dict(state["task"])


class _At(Enum):
    """How far the loop is with the batch that it has."""

    NONE = "no batch is taken"
    TAKEN = "a batch is taken"
    UPDATED = "update() was called for it"
    DONE = "it is done"


class OwnLoop:
    """A run that a loop of the user's own trains. Made by `Tolaria.run`."""

    def __init__(
        self,
        begin: Callable[[int, Callable[[Trainer], Steps]], Steps],
        task: LoopTask,
        result: Callable[[], TrainingResult],
        stop: Callable[[], bool],
    ) -> None:
        self._begin, self._task, self._result, self._stop = begin, task, result, stop
        self._steps: Steps | None = None
        self._trainer: Trainer | None = None
        # The micro-batches of the step that is due; () if a validation is due; None if the loop is sent back.
        self._due: tuple[Any, ...] | None = None
        self._is_over = False
        self._is_within = False
        # Raised by a call of the loop; it is thrown into the trainer at the next batch.
        self._thrown: BaseException | None = None
        self._at = _At.NONE
        self._losses: list[Tensor] = []
        self._is_validated = False
        self._values: dict[str, Any] = {}

    # -- before the loop -----------------------------------------------------------------------------------------------

    def keep(self, name: str, kept: Any) -> None:
        """Save the state of an object with every checkpoint, and restore it with every resume and rollback.

        The object has `state_dict()` and `load_state_dict(state)`. Call this before `epochs`. Raises LoopMisused.
        """
        if self._steps is not None:
            raise LoopMisused(f"keep({name!r}) was called within the loop; call it before run.epochs()")
        if _NAME.fullmatch(name) is None:
            raise LoopMisused(f"keep({name!r}): a name has letters, digits and _ . -, at most 64")
        if name in self._task.kept:
            raise LoopMisused(f"keep({name!r}): an object of this name is kept already")
        if not all(callable(getattr(kept, method, None)) for method in ("state_dict", "load_state_dict")):
            raise LoopMisused(f"keep({name!r}): a {type(kept).__name__} has no state_dict() and load_state_dict(state)")
        self._task.kept[name] = kept

    # -- the iterators -------------------------------------------------------------------------------------------------

    def epochs(self, epochs: int) -> Iterator[int]:
        """Yield the number of each epoch that is to be trained, up to `epochs`. After a rollback one comes again.

        Raises what `Tolaria.train` raises, and LoopMisused.
        """
        if self._steps is not None:
            raise LoopMisused("run.epochs() is iterated over already; a run has one loop")
        self._steps = steps = self._begin(epochs, self._drive)
        self._is_over = False
        try:
            self._proceed()
            while not self._is_over:
                self._is_within, self._is_validated, self._at = True, False, _At.NONE
                yield self._running.epoch
                self._end_epoch()
        finally:
            if self._trainer is not None and not self._is_over:
                _log.warning(_LEFT, self._trainer.step)
            self._steps = self._trainer = self._due = self._thrown = None
            self._is_within = False
            steps.close()

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the epoch that are left, as the loader gives them. A rollback or a stop ends it early.

        Call `step` once for each, or `update` and then `stepped`. Raises LoopMisused otherwise.
        """
        if not self._is_within:
            raise LoopMisused("run.batches() was called outside of `for epoch in run.epochs(...)`")
        while self._due and not self.interrupted:
            yield from self._group(self._due)
            if self._thrown is None:
                self._advance()

    def _group(self, group: tuple[Any, ...]) -> Iterator[Any]:
        """Yield the micro-batches of one step."""
        watch = self._running.stopwatch
        self._losses = []
        if not self._guarded(self._stepper.begin, len(group)):
            return
        for batch in group:
            self._at = _At.TAKEN
            watch.lend()
            yield batch
            watch.take_back()
            if self._thrown is not None:
                break
            if self._at is not _At.DONE:
                missing = "run.step(loss)" if self._at is _At.TAKEN else "run.stepped()"
                raise LoopMisused(f"{missing} was not called for the batch before; call it once for each batch")
        self._at = _At.NONE

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self, loss: Tensor, **metrics: float | Tensor) -> bool:
        """Run the backward pass, the gate and the update of a batch, and report the step.

        With `accumulate: N` the update comes with the last of N batches. `loss` has one element. Return False if the
        update was skipped, or if the loop is sent back. The gradients are dropped.
        """
        if self._is_void("step", _At.TAKEN):
            return False
        group, setup = self._due or (), self._setup
        self._take(metrics, "step")
        self._losses.append(add_gradients(setup, scalar(loss, "step(loss): the loss must be"), len(group)))
        self._at = _At.DONE
        if len(self._losses) < len(group):
            return True
        found = numbers_of(setup, self._losses, self._stepper.position.step + 1)
        return self._finish(self._stepper.finish, found, len(group))

    def update(self, name: str, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Run the backward pass of `loss`, then a step of the optimizer `name`; then call `stepped` once for the batch.

        The first one waits until the step before is durable. All gradients are dropped.
        """
        if self._is_void("update", _At.TAKEN, _At.UPDATED):
            return
        if self._setup.settings.accumulate > 1:
            raise LoopMisused("run.update() makes an update at once: set accumulate to 1")
        self._at = _At.UPDATED
        self._guarded(self._stepper.updates.update, name, loss, retain_graph=retain_graph)

    def stepped(self, **metrics: float | Tensor) -> bool:
        """Report the step whose updates were made. A `loss` among the metrics is that of the step.

        Return False if the updates were undone, because the step is a spike or not finite.
        """
        if self._is_void("stepped", _At.UPDATED):
            return False
        self._take(metrics, "stepped")
        found = self._stepper.updates.end(metrics)
        self._at = _At.DONE
        return self._finish(self._stepper.finish_updates, found, 1)

    def _finish(self, finish: Callable[[Any, int], None], found: Any, batches: int) -> bool:
        watch, before = self._running.stopwatch, self._stepper.position.step
        watch.take_back()
        self._guarded(finish, found, batches)
        watch.lend()
        return self._thrown is None and self._stepper.position.step > before

    # -- the end of an epoch -------------------------------------------------------------------------------------------

    def validated(self, metrics: Mapping[str, float | Tensor] | None = None, **more: float | Tensor) -> bool:
        """Give the metrics of the epoch's validation, by name: `loss` and `accuracy` are the known names.

        Return False, and ignore them, if the epoch did not come to its end: the loop is sent back, or stops.
        """
        if not self._is_within:
            raise LoopMisused("run.validated() was called outside of `for epoch in run.epochs(...)`")
        if self.interrupted:
            return False
        if self._due or self._is_validated:
            why = "before all batches of the epoch were taken" if self._due else "twice for one epoch"
            raise LoopMisused(f"run.validated() was called {why}")
        given = checked_metrics({**(metrics or {}), **more}, "validated(metrics): give")
        self._running.validate(Metrics({name: float(value) for name, value in given.items()}, 0))
        self._is_validated = True
        return True

    @property
    def interrupted(self) -> bool:
        """Whether the batches of this epoch ended before its end: the loop is sent back or stops. Skip validations."""
        return self._thrown is not None or self._due is None or self._is_over

    def _end_epoch(self) -> None:
        """Make the end of the epoch, and go to the next one. Only here a rollback restores, after the epoch's code."""
        if not self.interrupted:
            if self._due:
                raise LoopMisused(
                    f"the loop left run.batches() within epoch {self._running.epoch}; take all batches of an epoch, "
                    "or end the run by run.stop() or by leaving both loops"
                )
            if not self._is_validated:
                self._running.validate()
        self._proceed()

    # -- for the user --------------------------------------------------------------------------------------------------

    def log(self, name: str, value: float | Tensor) -> None:
        """Keep a number under a name. `metrics` and `Tolaria.get_metrics` have the last one."""
        self._take({name: value}, "log")

    @property
    def metrics(self) -> dict[str, float]:
        """The last numbers that were given to `step`, `stepped` and `log`, by name."""
        return {name: float(value) for name, value in self._values.items()}

    def stop(self) -> bool:
        """End the run at the next boundary, with a checkpoint: both iterators end there. False: it was refused."""
        return self._stop()

    @property
    def result(self) -> TrainingResult:
        """The run at the end of the loop, as `train` returns it."""
        return self._result()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _drive(self, trainer: Trainer) -> Steps:
        if self._trainer is not None:
            # The next trainer restores a checkpoint: only when the epoch's code has run to its end.
            yield None
        self._trainer = trainer
        yield from trainer.flow()

    def _proceed(self) -> None:
        """Go to the next step or validation that is due, back through every rollback."""
        self._advance()
        while self._due is None and not self._is_over:
            self._advance()

    def _advance(self) -> None:
        """Go to the next step that is due, over the boundary between."""
        if self._steps is None:
            raise LoopMisused("the loop has ended")
        thrown, self._thrown = self._thrown, None
        try:
            self._due = next(self._steps) if thrown is None else self._steps.throw(thrown)
        except StopIteration:
            self._due, self._is_over = None, True

    def _guarded(self, call: Callable[_Given, Any], *args: _Given.args, **kwargs: _Given.kwargs) -> Any:
        """Make a call that may be unwound by a rollback or an end. The loop learns of it at the next batch."""
        try:
            return call(*args, **kwargs)
        except (RollbackCommitted, ToldToExit) as unwound:
            self._thrown = unwound
            return None

    def _is_void(self, name: str, *expected: _At) -> bool:
        """Return whether the call has no effect, because the loop is sent back. Raises LoopMisused if out of place."""
        if self._thrown is not None:
            return True
        if self._at not in expected:
            raise LoopMisused(f"run.{name}() was called when {self._at.value}; {_ORDER}")
        return False

    def _take(self, metrics: Mapping[str, Any], name: str) -> None:
        if metrics:
            self._values.update(checked_metrics(metrics, f"{name}(): metrics must be"))

    @property
    def _running(self) -> Trainer:
        if self._trainer is None:
            raise LoopMisused("this works within `for epoch in run.epochs(...)` only")
        return self._trainer

    @property
    def _stepper(self) -> StepperOfUpdates:
        stepper = self._running.stepper
        if not isinstance(stepper, StepperOfUpdates):
            raise TypeError("this trainer was made for a task; this is a defect, please report it")
        return stepper

    @property
    def _setup(self) -> Setup:
        return self._running.setup


_ORDER: Final = (
    "for each batch call run.step(loss) once, or run.update(name, loss) any number of times and run.stepped()"
)


def for_own_loop(settings: Settings, model: nn.Module, optimizers: Any) -> Settings:
    """Return the settings for a user's loop: on the model's device, at the optimizers' own rates if none are set.

    Raises SetupRefused if the loop cannot do what the settings say.
    """
    if settings.precision == "bf16":
        raise SetupRefused(
            "precision is bf16, but your loop makes the forward pass: remove precision, and put the forward pass into "
            "`with torch.autocast(device, torch.bfloat16):`"
        )
    first = next(iter(optimizers.values()), None) if isinstance(optimizers, Mapping) else optimizers
    plain = replace(settings, learning_rate=LearningRate())
    if isinstance(first, torch.optim.Optimizer) and settings in (plain, with_implied_warmup(plain)):
        rate = float(first.param_groups[0]["lr"])
        least = min(settings.learning_rate.min_lr, rate)
        rates = replace(settings.learning_rate, base_lr=rate, policy="constant", warmup_epochs=0, min_lr=least)
        settings = replace(settings, learning_rate=rates)
    at = next(model.parameters(), torch.empty(0)).device
    return replace(settings, device=str(at)) if settings.device == "auto" else settings
