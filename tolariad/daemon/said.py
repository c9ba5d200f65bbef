"""Which events of a run a program's log says, in the words of the console."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.text.phrases import with_run
from tolariad.core.calc.text.repeats import Repeats, Told, calm, heard, rest
from tolariad.core.messages.sentences.text import sentence


class Saying:
    """Passes sentences to `say`, which must not block. Of events that come again and again it says how many there were.

    `run`: the name of the run, for the commands in sentences.
    """

    def __init__(self, say: Callable[[str], None], run: str) -> None:
        self._say = say
        self._run = run
        self._repeats = Repeats()

    def tell(self, events: Iterable[tuple[int, m.Event]]) -> None:
        """Say the events that are to be said."""
        for _, event in events:
            if _is_said(event):
                step = getattr(event, "step", None)
                self._take(heard(self._repeats, st.event_name(event), step, sentence(event)))
            elif isinstance(event, m.StepCompleted):
                self._take(calm(self._repeats, event.step))

    def end(self) -> None:
        """Say the counts that are pending."""
        self._take(rest(self._repeats))

    def _take(self, told: Told) -> None:
        self._repeats, lines = told
        for line in lines:
            self._say(with_run(line, self._run))


def _is_said(event: m.Event) -> bool:
    """Say in a program what the daemon's console says, with two differences.

    The caller gets the exception of a trainer that died, and nothing starts it again. A re-run, which the console shows
    as a stage of the run, is said when it begins.
    """
    return isinstance(event, m.RerunBegun) or (st.is_said(event) and not isinstance(event, m.TrainerDied))
