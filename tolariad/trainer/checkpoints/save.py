"""Save checkpoints: copy the state at a boundary in the loop's thread, and write it in a separate thread.

One checkpoint is written at a time; further orders wait. Training waits for the copy only. Promises: the whole state is
that of the boundary at which the copy was made. A folder has its final name only when it is complete; otherwise it is
removed. An error aborts that checkpoint only.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import torch
from msgspec.structs import asdict

import tolariad
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.pruning.ledger import COMPACT
from tolariad.failpoints import reached
from tolariad.storage import CheckpointUnusable, CheckpointWriter, Manifest, Pace, remove_partial
from tolariad.trainer.checkpoints.buffers import HostBuffer
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.files import AVERAGE_FILE, MASKS_FILE, MODEL_FILE, OPTIMIZER_FILE, SEEDS_FILE
from tolariad.trainer.checkpoints.snapshot import FILE_BYTES_MAX, Origin
from tolariad.trainer.checkpoints.tree import NotCapturable
from tolariad.trainer.process.threads import stand_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
    from tolariad.trainer.setup import Setup

    Paced = Callable[[Callable[[], None]], Pace]
    FromMemory = Callable[[m.CheckpointRef, HostBuffer], tuple[Snapshot, Origin]]

_Report = m.CheckpointWrittenReport | m.CheckpointFailedReport
# No training takes place during these: write them as fast as the disk allows.
_UNPACED: Final = frozenset({m.CheckpointReason.START, m.CheckpointReason.STOP, m.CheckpointReason.END})
_UNLIMITED: Final = partial(Pace, None)
_SPAN_OF: Final = {MODEL_FILE: "model", AVERAGE_FILE: "model", OPTIMIZER_FILE: "optimizer", SEEDS_FILE: "seeds"}
_CLOSE_S: Final = 10.0
# The copy is in memory, and often nothing else has this state: a disk that fails once must not cost it.
_AGAIN_S: Final = (0.1, 0.5)
_log: Final = logging.getLogger(__name__)


def newest_segment(run_dir: Path) -> int:
    """Return the number of the newest segment of a run's journal; 0 if there is none."""
    names = (path.name for path in (run_dir / "journal").glob("*.wal*"))
    return max((int(name[:8]) for name in names if name[:8].isdecimal()), default=0)


def kept_free(run_dir: Path, segment_bytes: int) -> Callable[[], int]:
    """Return a function: the bytes that a checkpoint must leave. The journal has to record that the disk is full."""
    return lambda: q.reserve_bytes(newest_segment(run_dir), segment_bytes)


class Abort(Exception):
    """No checkpoint can be made, or the one that is being written was aborted. The text gives the reason."""


class _Job:
    """One checkpoint, from its copy to its report. The thread sets `report` at its end."""

    def __init__(
        self,
        order: m.TakeCheckpoint,
        snapshot: Snapshot,
        write: Callable[[_Job], None],
        *,
        origin: Origin,
        paced: Paced,
        begun: float,
    ) -> None:
        """`write` runs in the thread."""
        self.order = order
        self.pace = Pace(None, self.tick) if order.reason in _UNPACED else paced(self.tick)
        self.snapshot = snapshot
        self.orders, self.acted = origin.orders, origin.acted
        self.parent = origin.parent
        self.compactions = origin.compactions
        self.begun = begun
        self.created_ns = time.time_ns()
        self.spans = dict.fromkeys(m.CheckpointSpans.__struct_fields__, 0.0) | {"held": time.perf_counter() - begun}
        self.aborted = ""
        self.report: _Report | None = None
        self.thread = threading.Thread(target=write, args=(self,), name="checkpoint-writer", daemon=True)
        self._pieces = self._seen = 0

    def tick(self) -> None:
        """Count a piece that is going to be written. Raises Abort."""
        self._pieces += 1
        if self.aborted:
            raise Abort(self.aborted)

    def has_moved(self) -> bool:
        """Return whether the write has progressed since the last call."""
        before, self._seen = self._seen, self._pieces
        return before != self._seen or self.report is not None


class Saver:
    """Writes the checkpoints of one run. `parent` is the checkpoint that the current state descends from, or empty."""

    def __init__(
        self,
        setup: Setup,
        root: Path,
        run_id: str,
        *,
        paced: Paced = _UNLIMITED,
        keep_free: Callable[[], int] = int,
        file_bytes: int = FILE_BYTES_MAX,
        sweep: Callable[[Path], object] = remove_partial,
    ) -> None:
        """`paced`: makes the pace of a checkpoint that is written during training.

        `keep_free` returns the bytes of the disk that a checkpoint must leave free. `sweep` removes what is unfinished.
        """
        self._setup = setup
        self._root = root
        self._run_id = run_id
        self._paced = paced
        self._keep_free = keep_free
        self._file_bytes = file_bytes
        self._buffer = HostBuffer(pinned=setup.device.type == "cuda")
        self._waiting: deque[m.TakeCheckpoint] = deque()
        self._known: set[str] = set()
        self._refused: deque[_Report] = deque()
        self._job: _Job | None = None
        # Whether the memory for the copy is reserved.
        self.is_prepared = False
        # Copies a snapshot out of the memory for snapshots.
        self._from_memory: FromMemory | None = None
        self._keeps_copy = True
        self._copy_bytes = 0
        self.parent = ""
        sweep(root)

    # -- in the loop's thread ------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether there is no order, no write in flight, and nothing to report."""
        return self._job is None and not self._waiting and not self._refused

    @property
    def held_bytes(self) -> int:
        """The bytes of memory reserved for copies."""
        return self._buffer.size

    @property
    def copy_bytes(self) -> int:
        """Memory that a copy takes, kept or not; 0 before there was one."""
        return max(self._copy_bytes, self.held_bytes)

    def keep_copy(self, *, kept: bool) -> None:
        """Say whether a copy's memory is kept for the next one. Without it each capture takes longer."""
        self._keeps_copy = kept
        self._release_copy()

    def _release_copy(self) -> None:
        if not self._keeps_copy and self._job is None:
            self._copy_bytes = self.copy_bytes
            self._buffer.release()

    @property
    def waits(self) -> bool:
        """Whether an order is pending."""
        return bool(self._waiting)

    @property
    def may_capture(self) -> bool:
        """Whether an order is pending and nothing is being written."""
        return self._job is None and bool(self._waiting)

    @property
    def moves(self) -> bool:
        """Return whether nothing is being written, or the write has progressed since the last call."""
        return self._job is None or self._job.has_moved()

    def order(self, order: m.TakeCheckpoint) -> None:
        """Queue an order. An order that is already queued (it may come again with a restart) is carried out once."""
        if order.id not in self._known:
            self._known.add(order.id)
            self._waiting.append(order)

    def read_memory_by(self, copy: FromMemory) -> None:
        """Copy snapshots that are to be written by this function."""
        self._from_memory = copy

    def descend_from(self, parent: str) -> None:
        """Set the checkpoint that the state descends from, from here on."""
        self.parent = parent

    def prepare(self, position: Position) -> None:
        """Reserve the memory for a copy ahead of time, once there is an optimizer state."""
        if self.is_prepared or not self._keeps_copy or not position.step:
            return
        self.is_prepared = True
        if not self._setup.train.can_stop_at(position.batch):
            return
        try:
            self._buffer.reserve_ahead(capture(self._setup, position).room)
        except NotCapturable:
            # The first checkpoint will report the same problem, with its path.
            return

    def capture(self, position: Position) -> m.StateCopiedReport | None:
        """Copy the run's state for the oldest pending order, and begin to write it. Call it after a boundary's fence
        only.

        Return the report to send before training continues, or None if there is no copy (`finished` returns the
        reason).
        """
        order = self._waiting.popleft()
        begun = time.perf_counter()
        self._setup.ledger.say_unrecorded(position.step)
        try:
            copied, origin = self._copied(order, position)
        except (Abort, NotCapturable) as error:
            self._refused.append(m.CheckpointFailedReport(id=order.id, why=str(error)))
            return None
        job = _Job(order, copied, self._run, origin=origin, paced=self._paced, begun=begun)
        reached("capture")
        self._job = job
        job.thread.start()
        # A snapshot was reported when it was taken.
        if order.snapshot is not None:
            return None
        return m.StateCopiedReport(id=order.id, **asdict(position), code=self._setup.code.late(self._setup.task))

    def _copied(self, order: m.TakeCheckpoint, position: Position) -> tuple[Snapshot, Origin]:
        """Return a copy of the state. Raises Abort or NotCapturable with the reason if there can be none."""
        if order.snapshot is not None:
            return self._copied_from_memory(order.snapshot)
        # No training follows the last checkpoint, so the data need not be resumable there.
        if order.reason is not m.CheckpointReason.END and not self._setup.train.can_stop_at(position.batch):
            raise Abort(self._setup.train.note)
        live, acted = capture(self._setup, position), self._setup.acted
        origin = Origin(acted.count, acted.causes, self.parent, self._setup.ledger.count(COMPACT))
        try:
            return live.copied_into(self._buffer), origin
        except (MemoryError, OSError, RuntimeError) as error:
            raise Abort(f"there is no memory for its copy of {live.room} bytes: {error}") from error

    def _copied_from_memory(self, ref: m.CheckpointRef) -> tuple[Snapshot, Origin]:
        """Return a copy of a snapshot. Raises Abort."""
        if self._from_memory is None:
            raise Abort("this trainer has no snapshot memory")
        try:
            return self._from_memory(ref, self._buffer)
        except (CheckpointUnusable, MemoryError, OSError, RuntimeError) as error:
            raise Abort(f"snapshot {ref.id} cannot be written: {error}") from error

    def finished(self) -> _Report | None:
        """Return the report of a finished order, once; None if there is none."""
        if self._refused:
            return self._refused.popleft()
        job = self._job
        if job is None or job.report is None:
            return None
        job.thread.join()
        self._job = None
        self._release_copy()
        if isinstance(job.report, m.CheckpointWrittenReport) and not job.aborted:
            # A checkpoint that was aborted after its last write exists, but the state does not descend from it.
            self.parent = job.order.id
        return job.report

    def abort(self, beyond_step: int, why: str) -> None:
        """Abort pending checkpoints, and one in flight of a step after `beyond_step`. Each is reported as failed."""
        while self._waiting:
            self._refused.append(m.CheckpointFailedReport(id=self._waiting.popleft().id, why=why))
        if self._job is not None and self._job.snapshot.position.step > beyond_step:
            self._job.aborted = why

    def hurry(self) -> None:
        """Write as fast as the disk allows: training waits until the write is done."""
        if self._job is not None:
            self._job.pace.lift()

    def close(self) -> None:
        """Abort the write in flight, because the process ends. Its files are removed if the disk responds."""
        self._waiting.clear()
        if self._job is not None:
            self._job.aborted = "the trainer ends"
            self._job.thread.join(_CLOSE_S)

    # -- in the writer's thread ----------------------------------------------------------------------------------------

    def _run(self, job: _Job) -> None:
        stand_back()
        try:
            job.report = self._written_at_last(job)
        except Abort as abort:
            job.report = m.CheckpointFailedReport(id=job.order.id, why=str(abort))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            needs = job.snapshot.nbytes if error.errno in (errno.ENOSPC, errno.EDQUOT) else 0
            why = f"cannot be written to {self._root}: {reason}"
            job.report = m.CheckpointFailedReport(id=job.order.id, why=why, needs=needs)
        except Exception as error:  # noqa: BLE001 - a checkpoint without an end would block all later ones
            job.report = m.CheckpointFailedReport(id=job.order.id, why=f"cannot be written: {error!r}")

    def _written_at_last(self, job: _Job) -> m.CheckpointWrittenReport:
        """Write the copy, again from the beginning if the disk fails. Raises the last OSError, and as `_written`."""
        for pause_s in _AGAIN_S:
            try:
                return self._written(job)
            except OSError as error:
                # New files each time: what a failed write or sync has left of the old ones is not known.
                _log.warning("checkpoint %s could not be written (%s); it is written again", job.order.id, error)
            job.tick()
            time.sleep(pause_s)
        return self._written(job)

    def _written(self, job: _Job) -> m.CheckpointWrittenReport:
        self._require_space(job.snapshot.nbytes)
        with CheckpointWriter(self._root, job.order.id, job.pace) as writer:
            for file in job.snapshot.files(self._file_bytes):
                begun = time.perf_counter()
                writer.add(file.name, file.chunks)
                job.spans[_SPAN_OF.get(file.group, "rest")] += time.perf_counter() - begun
                reached("checkpoint_file")
            for name, content in self._pieces_of_others(job.order.id, job.tick):
                writer.add(name, [content])
            begun = time.perf_counter()
            manifest_hash, manifest = writer.write_manifest(self._manifest(job))
            reached("manifest")
            job.tick()
            writer.publish()
            reached("publish")
            job.spans["write"] = time.perf_counter() - begun
            job.spans["throttled"] = job.pace.waited_s
        return m.CheckpointWrittenReport(
            id=job.order.id,
            **asdict(job.snapshot.position),
            manifest=manifest_hash,
            pieces=writer.pieces,
            seconds=time.perf_counter() - job.begun,
            merkle_root=manifest.merkle_root,
            spans=msgspec.convert(job.spans, m.CheckpointSpans),
            orders=job.orders,
        )

    def _pieces_of_others(self, _: str, __: Callable[[], None]) -> Iterable[tuple[str, bytes]]:
        """Return the files that other ranks give to a checkpoint. The function is called while this waits for them."""
        return ()

    def _require_space(self, size: int) -> None:
        """Raise ENOSPC if the checkpoint would take the space that the journal needs."""
        found = os.statvfs(self._root.parent)
        if found.f_bavail * found.f_frsize < size + self._keep_free():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _manifest(self, job: _Job) -> Manifest:
        position, environment = job.snapshot.position, self._setup.environment
        gpu = f", {environment.gpu} (CUDA {environment.cuda})" if environment.gpu else ""
        return Manifest(
            checkpoint_id=job.order.id,
            parent_checkpoint_id=job.parent,
            training_run_id=self._run_id,
            branch=job.order.branch,
            epoch=position.epoch,
            batch=position.batch,
            global_step=position.step,
            acted=job.acted,
            reason=job.order.reason.value,
            created_ns=job.created_ns,
            health=job.order.health,
            promoted_checkpoint_id=job.order.promoted,
            pruning_phase=job.order.pruning_phase,
            cumulative_pruned_fraction=job.order.pruned,
            compactions=job.compactions,
            mask_ref=MASKS_FILE if MASKS_FILE in job.snapshot.tensors else None,
            importance_ref=job.order.importance or None,
            model_hash=environment.model_hash,
            task_hash=environment.task_hash,
            config_hash=environment.config_hash,
            code_version=tolariad.__version__,
            toolchain_version=f"python {environment.python}, torch {environment.torch}, numpy {environment.numpy}",
            hardware_profile=f"{environment.device}, {environment.cpu}{gpu}",
            torch_threads=torch.get_num_threads(),
            ranks=self._setup.place.ranks,
            chunks=(),
            aliases=job.snapshot.aliases,
            cut=job.snapshot.cut(self._file_bytes),
            transient=job.snapshot.transient,
        )
