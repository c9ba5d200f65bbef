"""Taking snapshots: the run's state is copied into a slot at a boundary, then hashed and looked through beside training.

Promises: training stands for the copy and for nothing else; a snapshot is reported only when every parameter and every
moment of its optimizer was found finite; what goes wrong costs that snapshot only. It must not know: when one is due.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final

import torch

from tolariad.core.vocabulary import snapshots as sn
from tolariad.failpoints import reached
from tolariad.storage import CheckpointUnusable
from tolariad.trainer.checkpoints.capture import MODEL_FILE, OPTIMIZER_FILE, capture
from tolariad.trainer.checkpoints.tree import NotCapturable
from tolariad.trainer.rollback.slots import Slots, growth_of, slot_bytes
from tolariad.trainer.threads import stand_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.storage.slot import Table
    from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
    from tolariad.trainer.setup import Setup

_FLOATS: Final = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_CLOSE_S: Final = 10.0
_Report = sn.SnapshotSizeReport | sn.SnapshotTakenReport | sn.SnapshotFailedReport


class _Job:
    """One snapshot from its copy to its report, which is `report` once the thread is done."""

    def __init__(self, order: sn.TakeSnapshot, copied: Snapshot, orders: int, begun: float) -> None:
        """`orders`: of rates, those that the copy holds."""
        self.order = order
        self.orders = orders
        self.copied = copied
        self.begun = begun
        self.held_s = time.perf_counter() - begun
        self.given_up = ""
        self.report: sn.SnapshotTakenReport | sn.SnapshotFailedReport | None = None


class SnapshotHandler:
    """The trainer's snapshots. `slots` is None until the kernel has said how the memory is divided."""

    def __init__(self, setup: Setup, descriptor: int | None) -> None:
        """`descriptor`: the memory that the trainer was given; None where it was given none."""
        self._setup = setup
        self._descriptor = descriptor
        self._size_is_told = descriptor is None or not setup.settings.rollback.fast_path_enabled
        self._ordered: sn.TakeSnapshot | None = None
        self._job: _Job | None = None
        self._thread: threading.Thread | None = None
        self._reports: list[_Report] = []
        self.slots: Slots | None = None
        # Nothing to be done at a boundary.
        self.is_idle = self._size_is_told

    def obey(self, order: sn.UseRing | sn.TakeSnapshot) -> None:
        """Take note, wherever training stands."""
        if isinstance(order, sn.TakeSnapshot):
            self._ordered = order
            self.is_idle = False
        elif self.slots is None and self._descriptor is not None:
            self.slots = Slots(self._descriptor, order.ring)
            self.is_idle = False

    def tend(self, position: Position, fence: Callable[[], None], applied_cause: int, parent: str) -> None:
        """At a boundary: tell the size once there is an optimizer state, and take what was ordered.

        `fence` returns when the last step is settled and durable.
        """
        if self.slots is not None:
            self.slots.touch()
        if not self._size_is_told and position.step and self._setup.train.can_stop_at(position.batch):
            self._size_is_told = True
            self._tell_size(position)
        if self._ordered is not None and self._job is None:
            order, self._ordered = self._ordered, None
            fence()
            self._take(order, position, applied_cause, parent)

    def _tell_size(self, position: Position) -> None:
        try:
            live = capture(self._setup, position)
        except NotCapturable:
            # The first checkpoint will say so, and where.
            return
        roomy = slot_bytes(live, growth=growth_of(live))
        self._reports.append(sn.SnapshotSizeReport(size=roomy, least=slot_bytes(live)))

    def _take(self, order: sn.TakeSnapshot, position: Position, applied_cause: int, parent: str) -> None:
        begun = time.perf_counter()
        slots = self.slots
        if slots is None or not self._setup.train.can_stop_at(position.batch):
            self._fail(order, "this trainer has no memory for it" if slots is None else self._setup.train.note)
            return
        try:
            copied = slots.copy(order.slot, capture(self._setup, position))
        except (NotCapturable, CheckpointUnusable, ValueError) as error:
            self._fail(order, str(error))
            # Where the state has outgrown its slot none is ordered any more once that is known.
            self._tell_size(position)
            return
        reached("snapshot")
        self._job = job = _Job(order, copied, self._setup.rates.orders_applied, begun)
        arguments = (job, slots, applied_cause, parent)
        self._thread = threading.Thread(target=self._finish, args=arguments, name="snapshot", daemon=True)
        self._thread.start()

    def _fail(self, order: sn.TakeSnapshot, why: str) -> None:
        self._reports.append(sn.SnapshotFailedReport(id=order.id, why=why))

    def finished(self) -> _Report | None:
        """What there is to report, once."""
        job, thread = self._job, self._thread
        if job is not None and thread is not None and job.report is not None:
            thread.join()
            self._job = self._thread = None
            why = job.given_up
            self._reports.append(sn.SnapshotFailedReport(id=job.order.id, why=why) if why else job.report)
        if self._reports:
            return self._reports.pop(0)
        self.is_idle = self._size_is_told and self._ordered is None and self._job is None
        return None

    def abort(self, beyond_step: int, why: str) -> None:
        """The run goes back: what was ordered is not taken, and what is of a later step is not wanted."""
        if self._ordered is not None:
            self._fail(self._ordered, why)
            self._ordered = None
        if self._job is not None and self._job.copied.position.step > beyond_step:
            self._job.given_up = why

    def close(self) -> None:
        """The trainer ends: no thread of ours reads its memory any more."""
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    # -- in the snapshot's thread ----------------------------------------------------------------------------------------

    def _finish(self, job: _Job, slots: Slots, applied_cause: int, parent: str) -> None:
        stand_back()
        try:
            found = self._not_finite(job.copied)
            if found:
                job.report = sn.SnapshotFailedReport(id=job.order.id, why=f"{found} is not finite")
                return
            table, digest = slots.finish(job.order.slot, job.copied, applied_cause, parent)
            reached("snapshot_taken")
            job.report = _taken(job, table, digest)
        except Exception as error:  # noqa: BLE001 - one without an end would hold up all later ones
            job.report = sn.SnapshotFailedReport(id=job.order.id, why=f"cannot be taken: {error!r}")

    def _not_finite(self, copied: Snapshot) -> str:
        """The first parameter or moment with a value that is no number or beyond all. Buffers may hold such on purpose."""
        parameters = {name for name, _ in self._setup.model.named_parameters(remove_duplicate=False)}
        model = {n: t for n, t in copied.tensors[MODEL_FILE].items() if n in parameters}
        for name, tensor in (*model.items(), *copied.tensors[OPTIMIZER_FILE].items()):
            if tensor.dtype in _FLOATS and tensor.numel() and not _is_finite(tensor):
                return name
        return ""


def _is_finite(tensor: torch.Tensor) -> bool:
    """Is every value a number within all? One that is not makes the sum none, at a twentieth of what asking each takes.

    A sum may be beyond all by itself; then the least and the largest value say it.
    """
    if math.isfinite(tensor.sum().item()):
        return True
    least, largest = tensor.aminmax()
    return math.isfinite(least.item()) and math.isfinite(largest.item())


def _taken(job: _Job, table: Table, digest: str) -> sn.SnapshotTakenReport:
    return sn.SnapshotTakenReport(
        id=job.order.id,
        step=table.step,
        epoch=table.epoch,
        batch=table.batch,
        size=job.copied.nbytes,
        table=digest,
        xxh3=table.tensors_xxh3,
        state=f"{table.state_xxh3:016x}",
        orders=job.orders,
        held_s=job.held_s,
        seconds=time.perf_counter() - job.begun,
    )
