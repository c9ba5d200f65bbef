"""The script of a re-run, read from the journal in a thread beside the kernel's.

A script may hold millions of steps, which take seconds to read; the kernel answers meanwhile. Promises: only the script
that was requested last is delivered, and an error of the reading thread is raised in the kernel's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from journal import Reader
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.steps.branches import Branches
from tolariad.core.messages.vocabulary import Unknown, decode_event
from tolariad.core.state.run_state import RunState
from tolariad.kernel.trainer_link import TrainerLink


class ScriptRequest(NamedTuple):
    """The range and branches that a script covers. `first_seq`: everything the script needs comes after this event."""

    checkpoint: m.CheckpointRef | None
    first_seq: int
    branch: int
    branches: Branches

    @classmethod
    def for_order(cls, order: m.TrainFrom, state: RunState) -> ScriptRequest:
        """Return the request for this order's script.

        An order without a checkpoint needs a script too: a rate may have been set before the first step.
        """
        ref = order.checkpoint
        entry = q.restorable(state, ref.id) if ref else None
        # A step's events may precede its checkpoint's commit: files are written while training continues.
        # `script_from` is the event at which the copy of the state was reported, so nothing after the copy is missed.
        return cls(ref, entry.script_from if entry else 1, entry.branch if entry else 0, state.rollbacks.branches)


def read_script(folder: Path, request: ScriptRequest, cancelled: threading.Event) -> bytes:
    """Read a script from the journal, in the form in which the trainer receives it: the msgpack of a `Script`.

    Once `cancelled` is set it returns early, with a part of the script.
    """
    # A reader of its own: the kernel goes on appending meanwhile, and a reader never disturbs the writer.
    with Reader(folder) as reader:
        reader.seek(seq=request.first_seq)
        events = _events(cancelled, reader)
        # Only steps of the checkpoint's branch and its successors: an abandoned branch must not be repeated.
        script = q.script_from_journal(events, request.checkpoint, request.branch, request.branches)
        return msgspec.msgpack.encode(script)


class ScriptLoader:
    """Reads one script at a time. Only the kernel's thread calls the methods, but `close` after it has ended."""

    def __init__(self, folder: Path, call_in_kernel: Callable[[Callable[[], None]], None]) -> None:
        """`call_in_kernel` queues a function for the kernel's thread."""
        self._folder = folder
        self._call_in_kernel = call_in_kernel
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, order: m.TrainFrom, state: RunState, link: TrainerLink) -> None:
        """Send TrainFrom with the script of its re-run. Other orders may overtake it: the trainer obeys it first."""
        reports, request = link.reports, ScriptRequest.for_order(order, state)
        if reports is None:
            return
        if request.checkpoint is None:
            # Before the first checkpoint the journal is short: read it here, without a thread.
            link.send(order, read_script(self._folder, request, threading.Event()))
            return
        incarnation = reports.incarnation

        # Runs in the kernel's thread later. The trainer may have died meanwhile, and its successor gets an order of its
        # own.
        def send(script: bytes) -> None:
            if link.is_connected_to(incarnation):
                link.send(order, script)

        self.load(request, send)

    def load(self, request: ScriptRequest, then: Callable[[bytes], None]) -> None:
        """Cancel the request in flight, read this script, and call `then` with it in the kernel's thread."""
        self.cancel()
        # A new event for each request: the old thread keeps its own, which stays set.
        self._cancelled = threading.Event()
        self._thread = threading.Thread(
            target=self._work, args=(request, then, self._cancelled), name="tolaria-script", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Drop the request in flight: its callback will not be called."""
        # The thread ends at its next event. Waiting for it here would stop the kernel.
        self._cancelled.set()

    def close(self) -> None:
        """Cancel, and wait until the reading thread has ended."""
        self.cancel()
        # Wait, because the thread has journal files open: the daemon must not end the journal under it.
        if self._thread is not None:
            self._thread.join()

    def _work(self, request: ScriptRequest, then: Callable[[bytes], None], cancelled: threading.Event) -> None:
        script, failure = b"", None
        try:
            script = read_script(self._folder, request, cancelled)
        except Exception as error:  # noqa: BLE001 - `in_kernel` raises it again
            failure = error

        def in_kernel() -> None:
            # Check in the kernel's thread, not before the hand-over. The request may be cancelled between the two, and
            # a partial script must never reach a trainer.
            if cancelled.is_set():
                return
            if failure is not None:
                raise failure
            then(script)

        self._call_in_kernel(in_kernel)


def _events(cancelled: threading.Event, reader: Reader) -> Iterator[m.Event | Unknown]:
    for entry in reader:
        # Checked for every event, so that `close` waits for one decoding at most.
        if cancelled.is_set():
            return
        yield decode_event(entry.event)
