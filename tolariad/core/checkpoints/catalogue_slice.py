"""One checkpoint as the journal knows it, from its order on: values, and which of them are of use for what.

It must not know: which events change them, files.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from msgspec.structs import replace

from tolariad.core.base import Cause
from tolariad.core.checkpoints import words as ck


class Open(msgspec.Struct, frozen=True):
    """A checkpoint that was ordered and has no end yet.

    `fork`: the earliest place that the run went back to meanwhile, None where it did not; `fork_orders`: of rates, there.
    `script_seq`: it was ordered amid the re-run of a script that was cut from there; 0 where nothing was run again.
    """

    id: str
    reason: ck.CheckpointReason
    cause: Cause
    branch: int = 0
    orders: int = 0
    fork: tuple[int, int, int] | None = None
    fork_orders: int | None = None
    script_seq: int = 0

    def passed(self, fork: tuple[int, int, int], orders: int | None) -> Open:
        """The same, now that the run goes on from `fork`."""
        return self if self.fork is not None and self.fork < fork else replace(self, fork=fork, fork_orders=orders)

    def is_left(self, position: tuple[int, int, int], orders: int | None) -> bool:
        """Would one of `position` be of a line that was left? At the fork itself it is the target where it holds the same orders."""
        if self.fork is None or position < self.fork:
            return False
        return position > self.fork or orders is None or orders != self.fork_orders


class Entry(msgspec.Struct, frozen=True):
    """A committed checkpoint. `begun_seq`: every event after its step has a higher sequence number."""

    id: str
    reason: ck.CheckpointReason
    step: int
    epoch: int
    batch: int
    branch: int
    manifest: str
    size: int
    begun_seq: int
    committed_seq: int
    wall: int
    rejected: bool = False
    # Beyond the target of a rollback; promoted after a watch window; begun to be removed; only statistics are left.
    abandoned: bool = False
    promoted: bool = False
    condemned: bool = False
    reduced: bool = False
    importance: int = 0
    # By name in quarantine; empty where it is not.
    quarantined: str = ""
    # The boundary orders it holds; None if that is not known. `script_seq`: it holds fewer than had acted when it was
    # begun, or was begun while steps behind it were run again, and those come behind this event; 0 where there are none.
    orders: int | None = None
    script_seq: int = 0
    # Of another shape than the model as it was built in this execution context, empty where none is known; and than the model
    # as it stood in this trainer when it was to go back, 0 where none did.
    unfit_context: str = ""
    unfit_incarnation: int = 0
    # The very end of an epoch that was better than all before it.
    best: bool = False

    @property
    def is_target(self) -> bool:
        """May be trained from: it verified so far, lies on the living line, and is to stay."""
        return not (self.rejected or self.abandoned or self.condemned or self.reduced or self.quarantined)

    @property
    def script_from(self) -> int:
        """The first event that a script of what follows this checkpoint is cut from."""
        return self.script_seq or self.begun_seq

    @property
    def ref(self) -> ck.CheckpointRef:
        """What the trainer needs of it."""
        return ck.CheckpointRef(id=self.id, step=self.step, epoch=self.epoch, batch=self.batch, manifest=self.manifest)


class Watched(msgspec.Struct, frozen=True):
    """A checkpoint of the living line that is not promoted yet."""

    id: str
    step: int


class Removing(msgspec.Struct, frozen=True):
    """A checkpoint whose removal was begun and has no end yet."""

    id: str
    cause: Cause
    keeps_importance: bool = False


def best_of(catalogue: tuple[Entry, ...]) -> str:
    """Of the best epochs' ends that are left, the newest is the best: each was better than those before it."""
    left = (one for one in reversed(catalogue) if one.best)
    return next((one.id for one in left if not (one.abandoned or one.rejected or one.condemned or one.reduced)), "")


def none_left(catalogue: tuple[Entry, ...], removed: int) -> str:
    """What became of those there were, counted, where none may be trained from; "" where one may, or there never was one."""
    if any(one.is_target for one in catalogue):
        return ""
    counted = Counter(_fate(one) for one in catalogue)
    gone = {"removed": removed} if removed else {}
    return ", ".join(f"{count} {fate}" for fate, count in {**counted, **gone}.items())


def _fate(entry: Entry) -> str:
    fates = {
        "rejected": entry.rejected,
        "in quarantine": bool(entry.quarantined),
        "left by a rollback": entry.abandoned,
        "reduced to statistics": entry.reduced,
        "being removed": entry.condemned,
    }
    return next(fate for fate, is_so in fates.items() if is_so)
