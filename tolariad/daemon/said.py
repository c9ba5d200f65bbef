"""Which events of a run a program's log says, in the words of the console."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.messages.sentences.text import sentence


class Saying:
    """Passes sentences to `say`, which must not block. Corrections of rates are said a few times only."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._corrections = 0

    def tell(self, events: Iterable[tuple[int, m.Event]]) -> None:
        """Say the events that are to be said."""
        for _, event in events:
            if not _is_said(event):
                continue
            self._corrections += isinstance(event, m.LrViolationDetected)
            if not isinstance(event, m.LrViolationDetected) or self._corrections <= st.CORRECTIONS_SAID_MAX:
                self._say(sentence(event))
            elif self._corrections == st.CORRECTIONS_SAID_MAX + 1:
                self._say(st.FURTHER_CORRECTIONS)


def _is_said(event: m.Event) -> bool:
    """Say in a program what the daemon's console says, with two differences.

    The caller gets the exception of a trainer that died, and nothing starts it again. A re-run, which the console shows
    as a stage of the run, is said when it begins.
    """
    return isinstance(event, m.RerunBegun) or (st.is_said(event) and not isinstance(event, m.TrainerDied))
