"""The sentences for snapshots."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import size
from tolariad.core.messages.sentences.givers import Sentences

SENTENCES: Final[Sentences] = {
    m.SnapshotRingOpened: "There is memory for {e.slots} snapshots.",
    m.FastTierDisabled: "No snapshots are taken{why}",
    m.SnapshotBegun: "Snapshot {e.id} was begun.",
    m.SnapshotTaken: lambda e: f"Snapshot {e.id} of step {e.step} is in memory: {size(e.size)}.",
    m.SnapshotAborted: "Snapshot {e.id} was not taken{why}",
    m.SnapshotPromoted: "Enough healthy steps followed snapshot {e.id}: a rollback may use it.",
    m.SnapshotRejected: "Snapshot {e.id} is damaged and gone{why}",
}
