"""Copy the beginning of a journal into another folder, with further events after it: a history that went no further.

The copy is a journal of its own with the same run id and the same events. Its frames, chain and times of writing are
new, so it proves nothing about the original's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from journal.format import FrameKind
from journal.reader import Reader
from journal.records import JournalEntry
from journal.writer import Journal

_EVENTS_A_FRAME: Final = 256
_BYTES_A_FRAME: Final = 1 << 20
# No capture: whoever folds the copy begins at the one that ends it. msgpack's nil.
_NOTHING: Final = b"\xc0"
_ZEROS: Final = bytes(32)


def copy_until(
    reader: Reader,
    seq: int,
    target: Path,
    *,
    more: Sequence[bytes] = (),
    capture: bytes,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the events up to `seq`, then `more`, into the new journal `target`. Moves the reader's cursor.

    `capture`: the body of the capture that ends the copy. `progress` is called with sequence numbers. Raises
    JournalError, OSError.
    """
    with Journal.open(target) as journal:
        journal.begin(
            run_id=reader.run_id, context_hash=_ZEROS, capture=lambda: _NOTHING, wall_ns=0, boot_id=_ZEROS[:16]
        )
        batch: list[JournalEntry] = []
        held = 0
        for entry in reader.seek(seq=1):
            if entry.seq > seq:
                break
            if batch and (len(batch) == _EVENTS_A_FRAME or held > _BYTES_A_FRAME):
                _write(journal, batch)
                progress(entry.seq)
                batch, held = [], 0
            batch.append(entry)
            held += len(bytes(entry.event))
        last = _write(journal, batch)
        if more:
            journal.commit(list(more), epoch=last.epoch, step=last.step, wall_ns=last.wall_ns, mono_ns=0)
        journal.mark(FrameKind.CAPTURE, capture, wall_ns=last.wall_ns, mono_ns=0)


def _write(journal: Journal, batch: Sequence[JournalEntry]) -> JournalEntry:
    """Write one frame with these events, and return the last of them, whose labels are the frame's."""
    last = batch[-1]
    events = [bytes(one.event) for one in batch]
    journal.commit(events, epoch=last.epoch, step=last.step, wall_ns=last.wall_ns, mono_ns=0)
    return last
