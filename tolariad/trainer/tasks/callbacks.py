"""Call the task's optional methods, and revert what they do to learning rates.

Promises: after a callback every rate is what it was. A change is reported with its line of code. The line is exact from
the second violation on, because the first one turns on tracing of the next calls. If a callback steps a second
optimizer over the run's parameters, the callback ends, and the run continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tolariad.core.calc.learning_rate.schedule import LRIntegrityError
from tolariad.trainer.lr import source_lines
from tolariad.trainer.tasks.names import takes_context

if TYPE_CHECKING:
    from tolariad.trainer.lr import UnifiedLRController

_WATCHED_CALLS_MAX: Final = 8


class OfEpochs:
    """A task with metrics that are no mean over steps. `of_epoch`: their values over the epoch that has ended."""

    of_epoch: Mapping[str, float] = MappingProxyType({})


class Callbacks:
    """The optional methods of one task."""

    def __init__(self, task: Any, rates: UnifiedLRController) -> None:
        self._task = task
        self._rates = rates
        self._watch_calls = 0
        self._watched = 0
        self._there: dict[str, bool] = {}

    def has(self, name: str) -> bool:
        """Return whether the task has this method."""
        there = self._there.get(name)
        if there is None:
            there = self._there[name] = callable(getattr(self._task, name, None))
        return there

    def epoch_metrics(self) -> dict[str, float]:
        """Return the task's own metrics of the epoch that has ended, which are no means."""
        return dict(self._task.of_epoch) if isinstance(self._task, OfEpochs) else {}

    def takes_context(self, name: str) -> bool:
        """Return whether the task has this method, with a parameter `context`."""
        return self.has(name) and takes_context(getattr(self._task, name))

    def call(self, name: str, *arguments: Any, context: Any = None) -> None:
        """Call the method. Raises its exceptions, except LRIntegrityError, which is already reported.

        `context` is passed to a method that has a parameter for it.
        """
        method = getattr(self._task, name)
        if context is not None:
            method = partial(method, context=context)
        where = ""
        try:
            if self._watch_calls:
                self._watch_calls -= 1
                self._watched += 1
                _, where = source_lines.watched(lambda: method(*arguments), self._rates.is_clean)
            else:
                method(*arguments)
        except LRIntegrityError:
            # The second optimizer was stopped before it changed anything, and the violation is recorded.
            return
        finally:
            if not self._rates.is_clean():
                self._rates.verify(where=where or source_lines.of_function(method))
                if not where and self._watched < _WATCHED_CALLS_MAX:
                    self._watch_calls = 2
