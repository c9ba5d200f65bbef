"""Follow a checkpoint that the program ordered, from its order to the event that ends it."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from tolariad.core.checkpoints import words as ck

if TYPE_CHECKING:
    from tolariad.core.base import Event
    from tolariad.kernel import Kernel


class Wanted:
    """An ordered checkpoint: its id, once it is begun, and its end."""

    def __init__(self) -> None:
        self.cause: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def look(self, events: tuple[tuple[int, Event], ...]) -> None:
        """Note the events that concern this checkpoint. Runs in the kernel's thread."""
        for _, event in events:
            if isinstance(event, ck.CheckpointBegun | ck.CheckpointCommitted | ck.CheckpointAborted):
                self._events.put(event)

    def wait(self, kernel: Kernel) -> ck.CheckpointCommitted | None:
        """Wait for the end. Return the event that committed the checkpoint, or None if it was given up."""
        cause, id_ = self.cause.get(), ""
        while kernel.failure is None:
            try:
                event = self._events.get(timeout=0.2)
            except queue.Empty:
                continue
            if isinstance(event, ck.CheckpointBegun) and event.cause == cause:
                id_ = event.id
            elif isinstance(event, ck.CheckpointCommitted) and event.id == id_:
                return event
            elif isinstance(event, ck.CheckpointAborted) and event.id == id_:
                return None
        return None
