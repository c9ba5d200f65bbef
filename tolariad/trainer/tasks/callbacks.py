"""The task's optional methods are called here, and what they do to learning rates is found here.

Promises: after a callback every rate is what it was; a change is told with the line of code, exactly from the second
time on (the first one makes the next calls be watched line by line). A second optimizer over the run's parameters ends
the callback, not the run. It must not know: steps, reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tolariad.core.learning_rate import LRIntegrityError
from tolariad.trainer.lr import source_lines

if TYPE_CHECKING:
    from tolariad.trainer.lr import UnifiedLRController

_WATCHED_CALLS_MAX: Final = 8


class Callbacks:
    """The methods of one task."""

    def __init__(self, task: Any, rates: UnifiedLRController) -> None:
        self._task = task
        self._rates = rates
        self._watch_calls = 0
        self._watched = 0
        self._there: dict[str, bool] = {}

    def has(self, name: str) -> bool:
        """Does the task have this method?"""
        there = self._there.get(name)
        if there is None:
            there = self._there[name] = callable(getattr(self._task, name, None))
        return there

    def call(self, name: str, *arguments: Any) -> None:
        """Call it. Raises what it raises, but for LRIntegrityError, which was told already."""
        method = getattr(self._task, name)
        where = ""
        try:
            if self._watch_calls:
                self._watch_calls -= 1
                self._watched += 1
                _, where = source_lines.watched(lambda: method(*arguments), self._rates.is_clean)
            else:
                method(*arguments)
        except LRIntegrityError:
            # It was stopped before it moved anything; the violation is recorded with its line.
            return
        finally:
            if not self._rates.is_clean():
                self._rates.verify(where=where or source_lines.of_function(method))
                if not where and self._watched < _WATCHED_CALLS_MAX:
                    self._watch_calls = 2
