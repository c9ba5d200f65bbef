"""The steps of a loop of the user's own: which call is due for a batch, and what it does.

Promises: a batch gets one step, from one loss or from several updates. A rollback, or the end of the run, unwinds no
frame of the user's: the call returns, and the iterator ends at the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from tolariad.library.loop_task import LoopMisused
from tolariad.trainer.errors import ToldToExit
from tolariad.trainer.rollback import RollbackCommitted
from tolariad.trainer.step.gradients import add_gradients, numbers_of, scalar
from tolariad.trainer.step.several import StepperOfUpdates

if TYPE_CHECKING:
    from torch import Tensor

    from tolariad.trainer.loop import Trainer

_Given = ParamSpec("_Given")
_ORDER: Final = (
    "for each batch call run.step(loss) once, or run.update(name, loss) any number of times and run.stepped()"
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
    """

    def __init__(self, trainer: Trainer) -> None:
        if not isinstance(trainer.stepper, StepperOfUpdates):
            raise TypeError("this trainer was made for a task; this is a defect, please report it")
        self._stepper, self._setup, self._watch = trainer.stepper, trainer.setup, trainer.stopwatch
        self._at = _At.NONE
        # Of the step that is due: the number of its micro-batches, and the losses of those that are done.
        self._parts = 1
        self._losses: list[Tensor] = []
        self.thrown: BaseException | None = None

    def batches(self, group: tuple[Any, ...]) -> Iterator[Any]:
        """Yield the micro-batches of one step. Raises LoopMisused if the loop makes no step of one."""
        self._losses, self._parts = [], len(group)
        self._stepper.note(group)
        if not self.guarded(self._stepper.begin, len(group)):
            return
        for batch in group:
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

    def step(self, loss: Tensor, metrics: Mapping[str, float | Tensor]) -> bool:
        """Take the numbers of a micro-batch; after the last one make the update. Return False if it was skipped."""
        if self._is_void("step", _At.TAKEN):
            return False
        self._setup.metrics.log(metrics, self._parts)
        loss = scalar(loss, "step(loss): the loss must be")
        self._losses.append(add_gradients(self._setup, loss, self._parts, "step(loss): the loss"))
        self._at = _At.DONE
        if len(self._losses) < self._parts:
            return True
        found = numbers_of(self._setup, self._losses, self._stepper.position.step + 1)
        return self._finish(self._stepper.finish, found)

    def update(self, name: str, loss: Tensor, *, retain_graph: bool) -> None:
        """Make an update of the step."""
        if self._is_void("update", _At.TAKEN, _At.UPDATED):
            return
        if self._setup.settings.accumulate > 1:
            raise LoopMisused("run.update() makes an update at once: set accumulate to 1")
        self._at = _At.UPDATED
        self.guarded(self._stepper.updates.update, name, loss, retain_graph=retain_graph)

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

    def _finish(self, finish: Callable[[Any, int], None], found: Any) -> bool:
        before = self._stepper.position.step
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
