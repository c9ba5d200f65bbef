"""Follow one run for `tolaria watch`: ask its daemon, read its journal, and give a view whenever something changed.

Promises: reads only. It holds no lock, and a run never waits for it. If the daemon ends, the journal is read instead,
and the daemon is looked for until it answers again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from journal.errors import JournalError
from journal.reader import Reader
from tolariad.cli import output, runs
from tolariad.cli.errors import translated
from tolariad.cli.status import folded
from tolariad.cli.watching.seen import Seen
from tolariad.cli.watching.view import Status, View, panels_of
from tolariad.control.client import BadReply, Client, ControlError, NotReachable, read_reply
from tolariad.control.replies import RunStatus
from tolariad.control.reply_tables import BudgetTable, RateTable

_ANSWER_S: Final = 5.0
# Tables change seldom, and a curve moves less than a column in a few seconds.
_TABLES_EVERY: Final = 5
_CURVES_EVERY: Final = 5
# How far back the curves go, and how many events are read at once: the screen waits for them.
_EVENTS_MAX: Final = 100_000
_EVENTS_AT_ONCE: Final = 10_000
_ENDED: Final = ("completed", "stopped", "failed")


class Feed:
    """Follows the run. `step` is one round: ask, read, show. `run` repeats it until `close`; call it in a thread."""

    def __init__(self, target: runs.Target, show: Callable[[View], None], *, interval_s: float = 1.0) -> None:
        self._target = target
        self._show = show
        self._interval_s = interval_s
        self._view = View(where=str(target.folder or target.socket), link="No answer from the run yet.")
        self._client: Client | None = None
        self._reader: Reader | None = None
        self._seen = Seen()
        self._rounds = 0
        self._folded_seq = -1
        self._closed, self._wake = False, threading.Event()

    def run(self) -> None:
        """Follow the run until `close` is called."""
        try:
            while not self._closed:
                is_behind = self.step()
                if not is_behind:
                    self._wake.wait(self._interval_s)
                    self._wake.clear()
        finally:
            self._disconnect()
            self._forget_journal()

    def close(self) -> None:
        """Let `run` return. It may be waiting for an answer for a few seconds more."""
        self._closed = True
        self._wake.set()

    def look_now(self) -> None:
        """Ask again at once: an order was given."""
        self._wake.set()

    def step(self) -> bool:
        """Ask, read and show once. Return whether the journal has more events than were read at once."""
        was, before = self._view, (self._view.status or {}).get("run_id")
        try:
            self._ask()
        except (NotReachable, BadReply, ControlError) as error:
            self._disconnect()
            self._without_a_daemon(error)
        if before is None or self._view is was:
            self._give(was)
            was = self._view
        elif self._view.status is not None and self._view.status["run_id"] != before:
            self._forget_journal()
        is_behind = self._read()
        if is_behind or self._rounds % _CURVES_EVERY == 0 or self._view.link:
            if (panels := panels_of(self._seen)) != self._view.panels:
                self._change(panels=panels)
            self._change(checkpoints=tuple(self._seen.checkpoints))
        self._rounds += 1
        self._give(was)
        return is_behind

    def _give(self, was: View) -> None:
        if self._view is not was:
            self._show(self._view)

    def _change(self, **fields: Any) -> None:
        """Keep the view's identity if nothing changed: then nothing is shown again."""
        new = msgspec.structs.replace(self._view, **fields)
        if new != self._view:
            self._view = new

    def _ask(self) -> None:
        if self._client is None:
            self._client = self._target.connect(timeout_s=_ANSWER_S)
            self._rounds = 0
        client = self._client
        status = _plain(read_reply(client.call("Status").get("status") or {}, RunStatus))
        if self._rounds % _TABLES_EVERY == 0:
            rates = read_reply(client.call("LrShow").get("rates") or {}, RateTable)
            budgets = read_reply(client.call("Budgets").get("table") or {}, BudgetTable)
            self._change(rates=rates, breakers=budgets.open)
        self._change(status=status, link="")

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.__exit__()
            self._client = None

    def _without_a_daemon(self, error: Exception) -> None:
        """Take the status from the journal, and say why."""
        known = translated(error)
        why = known.what if known is not None else str(error)
        journal = self._journal()
        if journal is None:
            self._change(link=f"No answer: {why}. The last state is shown; the run is asked again.")
            return
        try:
            with Reader(journal) as reader:
                seq = reader.last_seq
            is_over = self._view.status is not None and (_is_over(self._view.status) or self._view.status["dead"])
            # The lock of a recorder that was killed may be freed a moment later.
            if seq != self._folded_seq or (not is_over and self._rounds % _TABLES_EVERY == 0):
                status = _plain(folded(journal))
                self._folded_seq = seq
                self._change(status=status, breakers=None)
        except Exception as damaged:
            if (damage := translated(damaged)) is None:
                raise
            self._change(link=f"No answer: {why}. The journal cannot be read: {damage.what}")
            return
        self._change(link=_link(self._view.status or {}, why))

    def _journal(self) -> Path | None:
        try:
            if self._target.folder is not None:
                return self._target.journal
            status = self._view.status
            return runs.Target(Path(status["dir"]), self._target.socket).journal if status is not None else None
        except OSError:
            return None

    def _read(self) -> bool:
        """Read new events. A journal that cannot be read leaves the curves as they are."""
        try:
            if self._reader is None:
                journal = self._journal()
                if journal is None:
                    return False
                self._reader = Reader(journal)
                self._reader.seek(seq=max(1, self._reader.last_seq - _EVENTS_MAX))
            entries = list(islice(self._reader, _EVENTS_AT_ONCE))
        except (JournalError, OSError):
            self._forget_journal()
            return False
        self._seen.add(entries)
        return len(entries) == _EVENTS_AT_ONCE

    def _forget_journal(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._seen = Seen()


def _plain(status: RunStatus) -> Status:
    """Return the status as a mapping whose texts are safe to show."""
    told: Status = output.printable(msgspec.to_builtins(status))
    return told


def _link(status: Status, why: str) -> str:
    """Return the sentence for a run whose daemon does not answer."""
    phase = status.get("phase")
    if _is_over(status):
        return f"The run has ended ({phase}). This is its last state; if it is started again, it is shown here."
    if status.get("dead"):
        return (
            "The run's process was killed. This is its last state; `tolariad run` continues it, and it is shown here."
        )
    return f"{why[:1].upper()}{why[1:]}. This is the state in the journal; the daemon is asked again."


def _is_over(status: Status) -> bool:
    return status.get("phase") in _ENDED and not status.get("live")
