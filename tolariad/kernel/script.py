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


class Wanted(NamedTuple):
    """What a script is cut by; `first_seq`: the event behind which everything of it lies."""

    checkpoint: CheckpointRef | None
    first_seq: int
    branch: int
    lines: Lines


def wanted_by(order: TrainFrom, state: RunState) -> Wanted:
    """What the order's script is cut by. Before the first checkpoint there is no step, but perhaps an order of a rate."""
    ref = order.checkpoint
    entry = place(state, ref.id) if ref else None
    return Wanted(ref, entry.script_from if entry else 1, entry.branch if entry else 0, state.rollbacks.lines)


def cut(folder: Path, wanted: Wanted, given_up: threading.Event) -> bytes:
    """The script, as msgpack."""
    with Reader(folder) as reader:
        reader.seek(seq=wanted.first_seq)
        events = _until(given_up, reader)
        return msgspec.msgpack.encode(cut_script(events, wanted.checkpoint, wanted.branch, wanted.lines))


class ScriptCutter:
    """Cuts one script at a time. `cut` and `cancel` are for the kernel's thread, `close` for whoever has ended it."""

    def __init__(self, folder: Path, hand_over: Callable[[Callable[[], None]], None]) -> None:
        """`hand_over` has a function called in the kernel's thread."""
        self._folder = folder
        self._hand_over = hand_over
        self._given_up = threading.Event()
        self._thread: threading.Thread | None = None

    def cut(self, wanted: Wanted, then: Callable[[bytes], None]) -> None:
        """Have `then` called with the script, as msgpack."""
        self.cancel()
        self._given_up = threading.Event()
        self._thread = threading.Thread(
            target=self._work, args=(wanted, then, self._given_up), name="tolaria-script", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Nobody wants the script any more."""
        self._given_up.set()

    def close(self) -> None:
        """Nothing is handed over from now on."""
        self.cancel()
        if self._thread is not None:
            self._thread.join()

    def _work(self, wanted: Wanted, then: Callable[[bytes], None], given_up: threading.Event) -> None:
        script, failure = b"", None
        try:
            script = cut(self._folder, wanted, given_up)
        except Exception as error:  # noqa: BLE001 - raised again where it belongs
            failure = error

        def in_kernel() -> None:
            # Looked at there and not here: between the two it may have been given up.
            if given_up.is_set():
                return
            if failure is not None:
                raise failure
            then(script)

        self._hand_over(in_kernel)


def _until(given_up: threading.Event, reader: Reader) -> Iterator[Event | Unknown]:
    for entry in reader:
        if given_up.is_set():
            return
        yield decode_event(entry.event)
