"""Hooks around the table while tests run: rules may make only what they declare, and decisions can be recorded."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from tests.core.reactions.recording import Outcome, Record, Recorder, folder
from tolariad.core import messages as m
from tolariad.core.decision import Decision
from tolariad.core.engine import Decided, Row
from tolariad.core.rules.table import decide as decide_module
from tolariad.core.rules.table import reactions
from tolariad.core.state.run_state import RunState, apply


def check_declarations() -> None:
    """From now on a rule of the running suite that makes something undeclared fails its test."""
    reactions.ENGINE.__init__(_checked(reactions.TABLE), apply)  # type: ignore[misc]  # in place: others hold it


def _checked(rows: Iterable[Row]) -> list[Row]:
    return [Row(row.kind, tuple(checked_rule(row, rule) for rule in row.rules), row.makes) for row in rows]


def checked_rule(row: Row, rule: Callable[..., Decision | None]) -> Callable[..., Decision | None]:
    """The same rule, which may only make what its row declares."""

    @wraps(rule)
    def checked(state: Any, what: Any, at: Any) -> Decision | None:
        decision = rule(state, what, at)
        if decision is not None and decision.events:
            # Tests record any event by these two inputs.
            brought = (
                (*what.facts,)
                if isinstance(what, m.Opened)
                else (what.recorded,)
                if isinstance(what, m.Scheduled)
                else ()
            )
            made = {type(event) for event in decision.events if event not in brought}
            undeclared = sorted(kind.__name__ for kind in made - row.makes)
            assert not undeclared, f"{rule.__name__} on {row.kind.__name__} made {undeclared}: declare it in `makes=`"
        return decision

    return checked


class _Recording:
    """The file of this process. A fork has one of its own if it runs tests, and none if tests have started it."""

    def __init__(self) -> None:
        self.process, self._lock = 0, threading.Lock()

    def begin(self) -> None:
        """Record what this process decides from now on, if that is wanted."""
        target = folder()
        if target is None:
            return
        self.process = os.getpid()
        self._recorder, self._lock = Recorder(target / f"{self.process}.zst"), threading.Lock()
        atexit.register(self._close, self.process)

    def add(self, record: Record) -> None:
        """Write a decision down."""
        with self._lock:
            self._recorder.add(record)

    def _close(self, process: int) -> None:
        if os.getpid() == process:
            self._recorder.close()


_RECORDING = _Recording()


def record_decisions() -> None:
    """Write every decision of this process into the folder that TOLARIA_RECORD_DECISIONS names, if it does.

    To be called before anybody imports `decide` by name.
    """
    if folder() is None:
        return
    plain = decide_module.decide
    _RECORDING.begin()

    def recorded(state: RunState, given: m.Input, now: m.Now) -> Decided[RunState]:
        decided = plain(state, given, now)
        if os.getpid() == _RECORDING.process:
            _RECORDING.add(Record(state, given, now, Outcome(decided.events, decided.effects, decided.answer)))
        return decided

    decide_module.decide = recorded


def record_in_this_fork() -> None:
    """Let a fork that runs tests record its decisions too."""
    _RECORDING.begin()
