"""The sentences for snapshots."""

from __future__ import annotations

from typing import Final

from tolariad.core.snapshots import words as sn
from tolariad.core.text.giver_sentences import Sentences
from tolariad.core.text.phrases import size

SENTENCES: Final[Sentences] = {
    sn.SnapshotRingOpened: "There is memory for {e.slots} snapshots.",
    sn.FastTierDisabled: "No snapshots are taken{why}",
    sn.SnapshotBegun: "Snapshot {e.id} was begun.",
    sn.SnapshotTaken: lambda e: f"Snapshot {e.id} of step {e.step} is in memory: {size(e.size)}.",
    sn.SnapshotAborted: "Snapshot {e.id} was not taken{why}",
    sn.SnapshotPromoted: "Enough healthy steps followed snapshot {e.id}: a rollback may use it.",
    sn.SnapshotRejected: "Snapshot {e.id} is damaged and gone{why}",
}
