"""The script of a re-run, cut from the journal beside the kernel's thread.

A script may be of millions of steps, which is seconds of reading, and the kernel answers meanwhile. Promises: at most one
cut counts, the last that was asked for; what goes wrong in one is raised in the kernel's thread. It must not know: to whom
a script is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from journal import Reader
from tolariad.core.lines import Lines
from tolariad.core.rerun import cut_script
from tolariad.core.snapshots import place
from tolariad.core.state import RunState
from tolariad.core.vocabulary import Event, Unknown, decode_event
from tolariad.core.vocabulary.checkpoints import CheckpointRef, TrainFrom


class ScriptRequest(NamedTuple):
    """What a script is cut by; `first_seq`: the event behind which everything of it lies."""

    checkpoint: CheckpointRef | None
    first_seq: int
    branch: int
    lines: Lines

    @classmethod
    def for_order(cls, order: TrainFrom, state: RunState) -> ScriptRequest:
        """What the order's script is cut by. Before the first checkpoint there is no step, but perhaps an order of a rate."""
        ref = order.checkpoint
        entry = place(state, ref.id) if ref else None
        return cls(ref, entry.script_from if entry else 1, entry.branch if entry else 0, state.rollbacks.lines)


class RerunScript(NamedTuple):
    """A script as the trainer receives it: `payload` is msgpack of `vocabulary.script.Script`."""

    payload: bytes

    @classmethod
    def from_journal(cls, folder: Path, request: ScriptRequest, cancelled: threading.Event) -> RerunScript:
        """The script, as msgpack."""
        with Reader(folder) as reader:
            reader.seek(seq=request.first_seq)
            events = _events(cancelled, reader)
            script = cut_script(events, request.checkpoint, request.branch, request.lines)
            return cls(msgspec.msgpack.encode(script))


class ScriptLoader:
    """Cuts one script at a time. `cut` and `cancel` are for the kernel's thread, `close` for whoever has ended it."""

    def __init__(self, folder: Path, call_in_kernel: Callable[[Callable[[], None]], None]) -> None:
        """`call_in_kernel` has a function called in the kernel's thread."""
        self._folder = folder
        self._call_in_kernel = call_in_kernel
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def load(self, request: ScriptRequest, then: Callable[[RerunScript], None]) -> None:
        """Have `then` called with the script, as msgpack."""
        self.cancel()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(
            target=self._work, args=(request, then, self._cancelled), name="tolaria-script", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Nobody wants the script any more."""
        self._cancelled.set()

    def close(self) -> None:
        """Nothing is handed over from now on."""
        self.cancel()
        if self._thread is not None:
            self._thread.join()

    def _work(self, request: ScriptRequest, then: Callable[[RerunScript], None], cancelled: threading.Event) -> None:
        script, failure = RerunScript(b""), None
        try:
            script = RerunScript.from_journal(self._folder, request, cancelled)
        except Exception as error:  # noqa: BLE001 - raised again where it belongs
            failure = error

        def in_kernel() -> None:
            # Looked at there and not here: between the two it may have been given up.
            if cancelled.is_set():
                return
            if failure is not None:
                raise failure
            then(script)

        self._call_in_kernel(in_kernel)


def _events(cancelled: threading.Event, reader: Reader) -> Iterator[Event | Unknown]:
    for entry in reader:
        if cancelled.is_set():
            return
        yield decode_event(entry.event)
