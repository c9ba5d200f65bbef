"""Take snapshots: copy the run's state into a slot at a boundary, then hash and check the copy while training goes on.

Promises: training waits for the copy only. A snapshot is reported only if every parameter and every optimizer moment is
finite. Those of seeds that the model does not depend on are left out. An error costs that snapshot only.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from msgspec.structs import asdict

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.pruning.ledger import COMPACT
from tolariad.failpoints import reached
from tolariad.storage import CheckpointUnusable
from tolariad.storage.manifest import OF_MODEL
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.files import MODEL_FILE, OF_OWNER, OPTIMIZER_FILE, SEEDS_FILE
from tolariad.trainer.checkpoints.snapshot import Origin
from tolariad.trainer.checkpoints.tree import NotCapturable
from tolariad.trainer.process.threads import stand_back
from tolariad.trainer.rollback.snapshot_slots import Slots, growth_of, slot_bytes, verify
from tolariad.trainer.seeds.slot import PATHS, Path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tolariad.storage.snapshot_slot import Table
    from tolariad.trainer.checkpoints.buffers import HostBuffer
    from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
    from tolariad.trainer.orders.numbered import ActedOrders
    from tolariad.trainer.setup import Setup

_FLOATS: Final = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_CLOSE_S: Final = 10.0
_Report = m.StateCopiedReport | m.SnapshotSizeReport | m.SnapshotTakenReport | m.SnapshotFailedReport


class _Counts(NamedTuple):
    """The tensors that must be finite.

    * `parameters`: names of parameters in the host's piece.
    * `of_seeds`: names of parameters in the piece of the seeds.
    * `moments`: the prefixes with which the names of seeds' moments begin.
    """

    parameters: frozenset[str]
    of_seeds: frozenset[str]
    moments: tuple[str, ...]


class _Job:
    """One snapshot, from its copy to its report. The thread sets `report` at its end."""

    def __init__(
        self, order: m.TakeSnapshot, copied: Snapshot, acted: ActedOrders, begun: float, counts: _Counts
    ) -> None:
        """`acted`: the boundary orders that the copied state contains. `counts`: what must be finite in it."""
        self.order = order
        self.orders, self.acted = acted.count, acted.causes
        self.copied = copied
        self.begun = begun
        self.counts = counts
        self.held_s = time.perf_counter() - begun
        self.given_up = ""
        self.report: m.SnapshotTakenReport | m.SnapshotFailedReport | None = None


class SnapshotHandler:
    """Takes the trainer's snapshots. `slots` is None until the kernel has said how the arena is divided."""

    def __init__(self, setup: Setup, descriptor: int | None) -> None:
        """`descriptor`: the file descriptor of the arena that the trainer inherited; None if there is no arena."""
        self._setup = setup
        self._descriptor = descriptor
        self._size_is_told = descriptor is None or not setup.settings.rollback.fast_path_enabled
        self._ordered: m.TakeSnapshot | None = None
        self._job: _Job | None = None
        self._thread: threading.Thread | None = None
        self._reports: list[_Report] = []
        # While memory is short: the only slots that may be used.
        self._narrow: Sequence[int] | None = None
        self.slots: Slots | None = None
        # True if there is nothing to do at a boundary.
        self.is_idle = self._size_is_told

    @property
    def held_bytes(self) -> int:
        """The bytes of memory for snapshots that are not given back."""
        return 0 if self.slots is None else self.slots.held_bytes

    def obey(self, order: m.UseRing | m.TakeSnapshot) -> None:
        """Remember the order. `tend` carries it out at the next boundary."""
        if isinstance(order, m.TakeSnapshot):
            self._ordered = order
            self.is_idle = False
        elif self.slots is None and self._descriptor is not None:
            self.slots = Slots(self._descriptor, order.ring)
            if self._narrow is not None:
                self.slots.narrow(self._narrow)
            self.is_idle = False

    def copied(self, ref: m.CheckpointRef, buffer: HostBuffer) -> tuple[Snapshot, Origin]:
        """Return a copy of a snapshot, and where it comes from. Raises CheckpointUnusable."""
        if self.slots is None or ref.slot is None:
            raise CheckpointUnusable(ref.id, "this trainer has no snapshot memory")
        held = self.slots.read(ref.slot, ref.manifest)
        verify(held)
        loaded = held.loaded
        compactions = sum(one.name == COMPACT for one in loaded.changes)
        origin = Origin(int(loaded.state["orders"]), held.table.acted, held.table.parent, compactions)
        return held.snapshot.copied_into(buffer), origin

    def narrow(self, slots: Sequence[int]) -> None:
        """Memory is short: keep that of these slots only."""
        self._narrow = slots
        if self.slots is not None:
            self.slots.narrow(slots)

    def widen(self) -> None:
        """Memory is no longer short: keep that of every slot."""
        self._narrow = None
        if self.slots is not None:
            self.slots.widen()
            self.is_idle = False

    def tend(self, position: Position, fence: Callable[[], None], parent: str) -> None:
        """Call at a boundary: report the size once there is optimizer state, and take an ordered snapshot.

        `fence` must return when the last step is durable.
        """
        if self.slots is not None and self._narrow is None:
            self.slots.touch()
        if not self._size_is_told and position.step and self._setup.train.can_stop_at(position.batch):
            self._size_is_told = True
            self._tell_size(position)
        if self._ordered is not None and self._job is None:
            order, self._ordered = self._ordered, None
            fence()
            self._take(order, position, parent)

    def _tell_size(self, position: Position) -> None:
        try:
            live = capture(self._setup, position)
        except NotCapturable:
            # The first checkpoint reports the same problem, with the path of the state.
            return
        roomy = slot_bytes(live, growth=growth_of(live)) + sum(part.room(live) for part in self._setup.parts)
        self._reports.append(m.SnapshotSizeReport(size=roomy, least=slot_bytes(live)))

    def _take(self, order: m.TakeSnapshot, position: Position, parent: str) -> None:
        begun = time.perf_counter()
        slots = self.slots
        if slots is None or not self._setup.train.can_stop_at(position.batch):
            self._fail(order, "this trainer has no snapshot memory" if slots is None else self._setup.train.note)
            return
        try:
            copied = slots.copy(order.slot, capture(self._setup, position))
        except OSError as error:
            self._fail(order, f"there is no memory for the slot again: {error.strerror}")
            return
        except (NotCapturable, CheckpointUnusable, ValueError) as error:
            self._fail(order, str(error))
            # If the state has outgrown its slot, this report makes the kernel order no more snapshots.
            self._tell_size(position)
            return
        # Reported before training goes on (`finished`).
        code = self._setup.code.late(self._setup.task)
        self._reports.append(m.StateCopiedReport(id=order.id, **asdict(position), code=code))
        reached("snapshot")
        self._job = job = _Job(order, copied, self._setup.acted, begun, _counts(self._setup))
        arguments = (job, slots, parent)
        self._thread = threading.Thread(target=self._finish, args=arguments, name="snapshot", daemon=True)
        self._thread.start()

    def _fail(self, order: m.TakeSnapshot, why: str) -> None:
        self._reports.append(m.SnapshotFailedReport(id=order.id, why=why))

    def finished(self) -> _Report | None:
        """Return the next report, or None. Each report is returned once."""
        job, thread = self._job, self._thread
        if job is not None and thread is not None and job.report is not None:
            thread.join()
            self._job = self._thread = None
            why = job.given_up
            self._reports.append(m.SnapshotFailedReport(id=job.order.id, why=why) if why else job.report)
        if self._reports:
            return self._reports.pop(0)
        self.is_idle = self._size_is_told and self._ordered is None and self._job is None
        return None

    def abort(self, beyond_step: int, why: str) -> None:
        """Cancel for a rollback: drop the order, and give up a snapshot of a step after `beyond_step`."""
        if self._ordered is not None:
            self._fail(self._ordered, why)
            self._ordered = None
        if self._job is not None and self._job.copied.position.step > beyond_step:
            self._job.given_up = why

    def close(self) -> None:
        """Wait for the thread, so that it does not read the trainer's memory while the trainer ends."""
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    # -- in the snapshot's thread --------------------------------------------------------------------------------------

    def _finish(self, job: _Job, slots: Slots, parent: str) -> None:
        stand_back()
        try:
            found = _not_finite(job.copied, job.counts)
            if found:
                job.report = m.SnapshotFailedReport(id=job.order.id, why=f"{found} is not finite")
                return
            table, digest = slots.finish(job.order.slot, job.copied, job.acted, parent)
            reached("snapshot_taken")
            job.report = _taken(job, table, digest)
        except Exception as error:  # noqa: BLE001 - a snapshot without an end would block all later ones
            job.report = m.SnapshotFailedReport(id=job.order.id, why=f"the snapshot failed: {error!r}")


def _counts(setup: Setup) -> _Counts:
    """Return what must be finite in a copy of the present state.

    A seed's values count from BLENDING on, when they are a part of the model. Before that the host does not depend on
    them, and a sick seed must not keep the run from going back. It is culled at the epoch's end.
    """
    heard = [plot for plot in setup.garden.growing if PATHS[plot.stage] >= Path.BLEND]
    prefixes = tuple(plot.prefix for plot in heard)
    names = [name for name, _ in setup.model.named_parameters(remove_duplicate=False)]
    of_seeds = frozenset(f"{OF_MODEL}{name}" for name in names if prefixes and name.startswith(prefixes))
    moments = tuple(f"{OF_OWNER}{st.group_of(plot.name)}." for plot in heard)
    return _Counts(frozenset(names), of_seeds, moments)


def _not_finite(copied: Snapshot, counts: _Counts) -> str:
    """Return the name of the first parameter or moment that counts and is not finite. Buffers may be so on purpose."""
    of_model, of_optimizers = copied.tensors[MODEL_FILE], copied.tensors[OPTIMIZER_FILE]
    checked = [*((n, t) for n, t in of_model.items() if n in counts.parameters), *of_optimizers.items()]
    if counts.of_seeds:
        of_seeds = copied.tensors[SEEDS_FILE].items()
        checked += [(n, t) for n, t in of_seeds if n in counts.of_seeds or n.startswith(counts.moments)]
    for name, tensor in checked:
        if tensor.dtype in _FLOATS and tensor.numel() and not _is_finite(tensor):
            return name
    return ""


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every value is finite. A sum shows it in a twentieth of the time of `isfinite().all()`."""
    # The sum of finite values may overflow. Then the smallest and the largest value decide.
    if math.isfinite(tensor.sum().item()):
        return True
    least, largest = tensor.aminmax()
    return math.isfinite(least.item()) and math.isfinite(largest.item())


def _taken(job: _Job, table: Table, digest: str) -> m.SnapshotTakenReport:
    return m.SnapshotTakenReport(
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
