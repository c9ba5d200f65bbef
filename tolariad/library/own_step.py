"""The steps of a loop of the user's own: which call is due for a batch, and what it does.

Promises: a batch gets one step, from one loss or from several updates. A rollback, or the end of the run, unwinds no
frame of the user's: the call returns, and the iterator ends at the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, ParamSpec

import torch

from tolariad.library.loop_task import LoopMisused
from tolariad.trainer.errors import ToldToExit
from tolariad.trainer.lr.source_lines import of_assignment, of_call
from tolariad.trainer.rollback import RollbackCommitted
from tolariad.trainer.step.closures import Closure, needs_closure
from tolariad.trainer.step.gradients import has_gradients, numbers_of, scalar
from tolariad.trainer.step.several import StepperOfUpdates
from tolariad.trainer.tasks.given import codes_of
from tolariad.trainer.torch_private.graphs import is_second_pass, was_used

if TYPE_CHECKING:
    from torch import Tensor

    from tolariad.trainer.loop import Trainer

_Given = ParamSpec("_Given")
_ORDER: Final = (
    "for each batch call run.step(loss) once, or run.update(name, loss) any number of times and run.stepped()"
)

_OWN: Final = (
    "If your loop calls backward() itself, give run.step(loss.detach()): the gradients that are there are then used. "
    "Else drop them before, by optimizer.zero_grad(). For micro-batches set `accumulate` in the configuration and call "
    "run.step(loss) for each; to clip, give run() a task= with clip_gradients(model)"
)


class _At(Enum):
    """How far the loop is with the batch that it has."""

    NONE = "no batch is taken"
    TAKEN = "a batch is taken"
    UPDATED = "update() was called for it"
    DONE = "it is done"


class LoopStep:
    """The steps that a loop makes with one trainer.

    `thrown` is the exception that a call or the loop itself raised. It is thrown into the trainer at the next batch.
    `batch` is the index in its epoch of the batch that was taken last.
    """

    def __init__(self, trainer: Trainer) -> None:
        if not isinstance(trainer.stepper, StepperOfUpdates):
            raise TypeError("this trainer was made for a task; this is a defect, please report it")
        self._stepper, self._setup, self._watch = trainer.stepper, trainer.setup, trainer.stopwatch
        self._at = _At.NONE
        # Of the step that is due: the number of its micro-batches, and the losses of those that are done.
        self._parts = 1
        self._losses: list[Tensor] = []
        # Whether the loop makes the backward passes of this step.
        self._is_own = False
        # Whether a step was begun and has made no update yet.
        self._is_begun = False
        self.batch = 0
        self.thrown: BaseException | None = None

    @property
    def is_between(self) -> bool:
        """Whether the step of the batch that was taken is done."""
        return self._at is _At.DONE and not self._is_begun

    def batches(self, group: tuple[Any, ...]) -> Iterator[Any]:
        """Yield the micro-batches of one step. Raises LoopMisused if the loop makes no step of one."""
        self._losses, self._parts = [], len(group)
        self._stepper.note(group)
        first = self._stepper.position.batch
        if not self.guarded(self._stepper.begin, len(group)):
            return
        self._is_begun = True
        for number, batch in self._yielded(group, first):
            self.batch = number
            self._at = _At.TAKEN
            self._watch.lend()
            yield batch
            self._watch.take_back()
            if self.thrown is not None:
                break
            if self._at is not _At.DONE:
                missing = "run.step(loss)" if self._at is _At.TAKEN else "run.stepped()"
                raise LoopMisused(f"{missing} was not called for the batch before; call it once for each batch")
        self._at = _At.NONE

    def _yielded(self, group: tuple[Any, ...], first: int) -> Iterator[tuple[int, Any]]:
        """Yield the micro-batches that the loop sees, each with its index in the epoch; `first`: the group's first."""
        return enumerate(group, first)

    def length(self, batches: int) -> int:
        """Return how many of the next batches of an epoch the loop sees."""
        return batches

    def step(self, loss: Any, closure: Closure | None, metrics: Mapping[str, float | Tensor]) -> bool:
        """Take the numbers of a micro-batch; after the last one make the update. Return False if it was skipped."""
        if self._is_void("step", _At.TAKEN):
            return False
        self._refuse_other_rate()
        if closure is not None:
            return self._step_by(closure, loss, metrics)
        if needing := [one for one in self._setup.host if needs_closure(one.optimizer)]:
            raise LoopMisused(
                f"run.step(loss) was called, but {type(needing[0].optimizer).__name__} evaluates the loss several "
                "times in a step: give run.step(closure=...) the function that computes and returns the loss"
            )
        self._take(loss, metrics)
        self._at = _At.DONE
        return self._finish(self._stepper.finish, self._numbers()) if self._has_all else True

    def _take(self, loss: Any, metrics: Mapping[str, float | Tensor]) -> None:
        """Take the numbers of a micro-batch."""
        self._setup.metrics.log(metrics, self._parts)
        self._losses.append(self._gradients_of(loss))

    @property
    def _has_all(self) -> bool:
        """Whether that was the last micro-batch of the step."""
        return len(self._losses) == self._parts

    def _numbers(self) -> Any:
        """Return the numbers of the step, from those of its micro-batches."""
        return numbers_of(self._setup, self._losses, self._stepper.position.step + 1)

    def _step_by(self, closure: Closure, loss: Any, metrics: Mapping[str, float | Tensor]) -> bool:
        """Make a step whose only update is by a closure."""
        if len(names := self._stepper.updates.names) > 1:
            raise LoopMisused(
                f"run.step(closure=...) is for one optimizer, and the run has {', '.join(names)}: call "
                "run.update(name, closure=...) for each, then run.stepped()"
            )
        self.update(names[0], loss, closure=closure, retain_graph=False)
        return self.stepped(metrics)

    def _gradients_of(self, loss: Any) -> Tensor:
        """Run the backward pass of a micro-batch, unless the loop has done that. Return the loss without its graph."""
        owners, parts, first = self._setup.owners, self._parts, not self._losses
        if first:
            self._is_own = has_gradients(owners)
        if not self._is_own:
            loss = scalar(loss, "step(loss): the loss must be")
            try:
                return self._stepper.add_gradients(self._setup, loss, parts, "step(loss): the loss")
            except RuntimeError as error:
                if not is_second_pass(error):
                    raise
                what = "the backward pass of this loss was made before run.step(loss), and its gradients are gone"
                raise LoopMisused(f"{what}. {_OWN}") from error
        if self._setup.scaling is not None:
            raise LoopMisused(f"precision fp16 scales the loss in run.step(loss), before the backward pass. {_OWN}")
        number = torch.as_tensor(loss) if isinstance(loss, int | float) else loss
        if number is None:
            raise LoopMisused(f"run.step(None): the loss is recorded too; give its number. {_OWN}")
        number = scalar(number, "step(loss): the loss must be")
        if number.requires_grad and not was_used(number):
            raise LoopMisused(f"gradients were there before run.step(loss), which makes the backward pass. {_OWN}")
        return number.detach()

    def update(self, name: str, loss: Tensor | None, *, closure: Closure | None, retain_graph: bool) -> None:
        """Make an update of the step."""
        if self._is_void("update", _At.TAKEN, _At.UPDATED):
            return
        self._refuse_other_rate()
        if self._setup.settings.accumulate > 1:
            what = "run.update()" if closure is None else "a closure"
            raise LoopMisused(f"{what} makes its step at once: set accumulate to 1")
        self._at = _At.UPDATED
        self.guarded(self._stepper.updates.update, name, loss, closure=closure, retain_graph=retain_graph)

    def _refuse_other_rate(self) -> None:
        """Raise LoopMisused if the loop has set a learning rate: it would print another one than the run trains at."""
        rates = self._setup.rates
        if rates.is_clean() or (other := rates.other_rate()) is None:
            return
        codes = codes_of(self._setup.task)
        where = of_assignment("lr", codes) or of_call("step", codes, near="sched")
        raise LoopMisused(
            f"{other.what}: group {other.group} has the rate {other.found!r}, and the run trains at {other.expected!r}"
            f"{f' ({where})' if where else ''}. Only the rate controller sets rates, so that a resume repeats them. "
            "Give the schedule in the configuration, as learning_rate.policy: constant, linear, cosine, step, onecycle "
            "and others, or `rates.py:function` for a function of the step (docs/learning-rate.md); then remove this "
            "line"
        )

    def stepped(self, metrics: Mapping[str, float | Tensor]) -> bool:
        """End the step of the updates. Return False if they were undone."""
        if self._is_void("stepped", _At.UPDATED):
            return False
        found = self._stepper.updates.end(metrics)
        self._at = _At.DONE
        return self._finish(self._stepper.finish_updates, found)

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Record numbers with the step that is reported next."""
        if self.thrown is None:
            self._setup.metrics.log(values)

    def give_up(self) -> bool:
        """Put back what the loop has done of a step that it does not finish. Return False if that is not possible."""
        if not self._is_begun:
            return True
        self._is_begun = False
        return self._stepper.give_up()

    def _finish(self, finish: Callable[[Any, int], None], found: Any) -> bool:
        before, self._is_begun = self._stepper.position.step, False
        self._watch.take_back()
        self.guarded(finish, found, self._parts)
        self._watch.lend()
        return self.thrown is None and self._stepper.position.step > before

    def _is_void(self, name: str, *expected: _At) -> bool:
        """Return whether the call has no effect, because the loop is sent back. Raises LoopMisused if out of place."""
        if self.thrown is not None:
            return True
        if self._at not in expected:
            raise LoopMisused(f"run.{name}() was called when {self._at.value}; {_ORDER}")
        return False

    def guarded(self, call: Callable[_Given, Any], *args: _Given.args, **kwargs: _Given.kwargs) -> Any:
        """Make a call that may be unwound by a rollback or an end: it then returns None, and `thrown` is set."""
        try:
            return call(*args, **kwargs)
        except (RollbackCommitted, ToldToExit) as unwound:
            self.thrown = unwound
            return None
