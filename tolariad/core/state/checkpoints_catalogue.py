"""The state of a checkpoint from its order on: values, and what each checkpoint may be used for."""

from collections import Counter

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.copying import Copying


class OpenCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was ordered and has not ended yet.

    `fork`: the earliest place that the run went back to meanwhile, or None. `fork_orders`: how many boundary orders
    that place contains. `script_seq`: if it was ordered during a re-run, the event at which that script begins; else 0.
    `copy_of`: the snapshot that it is written from.
    """

    id: str
    reason: m.CheckpointReason
    cause: m.Cause
    branch: int = 0
    orders: int = 0
    fork: tuple[int, int, int] | None = None
    fork_orders: int | None = None
    script_seq: int = 0
    copy_of: str = ""

    def passed(self, fork: tuple[int, int, int], orders: int | None) -> "OpenCheckpoint":
        """Return the same checkpoint after the run went back to `fork`."""
        return self if self.fork is not None and self.fork < fork else replace(self, fork=fork, fork_orders=orders)

    def is_left(self, position: tuple[int, int, int], orders: int | None) -> bool:
        """Return whether a checkpoint of `position` lies on a branch that was left.

        At the fork itself it is as good as the target if it contains the same orders.
        """
        if self.fork is None or position < self.fork:
            return False
        return position > self.fork or orders is None or orders != self.fork_orders


class CatalogueEntry(Copying, frozen=True):
    """A committed checkpoint. `begun_seq`: every event after its step has a higher sequence number."""

    id: str
    reason: m.CheckpointReason
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
    # `abandoned`: it lies beyond the target of a rollback. `promoted`: enough healthy steps followed it. `condemned`:
    # its removal has begun. `reduced`: only its importance statistics are left.
    abandoned: bool = False
    promoted: bool = False
    condemned: bool = False
    reduced: bool = False
    importance: int = 0
    # The quarantine entry that names it, or empty.
    quarantined: str = ""
    # How many boundary orders it contains; None if that is not known. `script_seq` is 0 or the event at which its
    # script begins. It is set if the checkpoint contains fewer orders than had acted, or was begun during a re-run.
    orders: int | None = None
    script_seq: int = 0
    # `unfit_context`: the execution context in which the task builds a model of another shape; empty if none is known.
    # `unfit_incarnation`: the trainer whose model had another shape when it was to go back; 0 if none.
    unfit_context: str = ""
    unfit_incarnation: int = 0
    # It holds the end of an epoch that was better than all before it.
    best: bool = False
    # The autopilot keeps it as a way back (StatePinned).
    pinned: bool = False

    @property
    def is_target(self) -> bool:
        """Return whether training may begin from it: it is usable, on the current branch, and not to be removed."""
        return not (self.rejected or self.abandoned or self.condemned or self.reduced or self.quarantined)

    @property
    def is_way_back(self) -> bool:
        """Return whether the run may go back to it: it is a target, or it was pinned on a branch that was left."""
        return self.is_target or (self.pinned and replace(self, abandoned=False).is_target)

    @property
    def script_from(self) -> int:
        """Return the first event of a script that begins at this checkpoint."""
        return self.script_seq or self.begun_seq

    @property
    def ref(self) -> m.CheckpointRef:
        """Return the fields that the trainer needs."""
        return m.CheckpointRef(id=self.id, step=self.step, epoch=self.epoch, batch=self.batch, manifest=self.manifest)


class Watched(msgspec.Struct, frozen=True):
    """A checkpoint of the current branch that is not promoted yet."""

    id: str
    step: int


class Removing(msgspec.Struct, frozen=True):
    """A checkpoint whose removal has begun and not ended."""

    id: str
    cause: m.Cause
    keeps_importance: bool = False


def best_of(catalogue: tuple[CatalogueEntry, ...]) -> str:
    """Return the id of the best checkpoint, or "": the newest usable one of a best epoch, since each beat the last."""
    left = (one for one in reversed(catalogue) if one.best)
    return next((one.id for one in left if not (one.abandoned or one.rejected or one.condemned or one.reduced)), "")


def none_left(catalogue: tuple[CatalogueEntry, ...], removed: int) -> str:
    """Return how many checkpoints were lost for which reasons; "" if one may be trained from, or none ever was."""
    if any(one.is_target for one in catalogue):
        return ""
    counted = Counter(_fate(one) for one in catalogue)
    gone = {"removed": removed} if removed else {}
    return ", ".join(f"{count} {fate}" for fate, count in {**counted, **gone}.items())


def _fate(entry: CatalogueEntry) -> str:
    fates = {
        "rejected": entry.rejected,
        "in quarantine": bool(entry.quarantined),
        "left by a rollback": entry.abandoned,
        "reduced to statistics": entry.reduced,
        "being removed": entry.condemned,
    }
    return next(fate for fate, is_so in fates.items() if is_so)
