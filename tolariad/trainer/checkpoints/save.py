"""Carrying out an order for a checkpoint: capture, files, manifest, and the report of what became of it.

Promises: either the folder is complete under its name, or nothing of it is left. It must not know: the channel.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch

import tolariad
from tolariad.core.vocabulary.checkpoints import CheckpointFailedReport, CheckpointWrittenReport
from tolariad.failpoints import reached
from tolariad.storage import CheckpointWriter, Manifest, remove_partial
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.tree import NotCapturable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tolariad.core.vocabulary.checkpoints import Piece, TakeCheckpoint
    from tolariad.trainer.checkpoints.capture import Captured, Position
    from tolariad.trainer.setup import Setup


def _telling(chunks: Iterator[bytes | memoryview], each: Callable[[], None]) -> Iterator[bytes | memoryview]:
    """The chunks, with `each` called before each of them."""
    for chunk in chunks:
        each()
        yield chunk


class Saver:
    """Writes the checkpoints of one run. `parent` is the one the present state descends from, if any."""

    def __init__(self, setup: Setup, root: Path, run_id: str) -> None:
        self._setup = setup
        self._root = root
        self._run_id = run_id
        self._written: set[str] = set()
        self.parent = ""
        remove_partial(root)

    def save(
        self, order: TakeCheckpoint, position: Position, applied_cause: int, each: Callable[[], None]
    ) -> CheckpointWrittenReport | CheckpointFailedReport | None:
        """Write checkpoint `order.id`; None where this process has written it already.

        `each` is called before each part is written: a file may take longer than a heartbeat may be away.
        """
        if order.id in self._written:
            return None
        begun = time.perf_counter()
        if not self._setup.train.can_stop_at(position.batch):
            return CheckpointFailedReport(id=order.id, why=self._setup.train.note)
        try:
            manifest_hash, pieces = self._write(order, position, applied_cause, each)
        except NotCapturable as error:
            return CheckpointFailedReport(id=order.id, why=str(error))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            return CheckpointFailedReport(id=order.id, why=f"cannot be written to {self._root}: {reason}")
        self._written.add(order.id)
        self.parent = order.id
        return CheckpointWrittenReport(
            id=order.id,
            step=position.step,
            epoch=position.epoch,
            batch=position.batch,
            manifest=manifest_hash,
            pieces=pieces,
            seconds=time.perf_counter() - begun,
            applied_cause=applied_cause,
        )

    def _write(
        self, order: TakeCheckpoint, position: Position, applied_cause: int, each: Callable[[], None]
    ) -> tuple[str, tuple[Piece, ...]]:
        captured = capture(self._setup, position)
        with CheckpointWriter(self._root, order.id) as writer:
            for name, chunks in captured.pieces():
                writer.add(name, _telling(chunks, each))
                reached("checkpoint_file")
            manifest = self._manifest(order, position, applied_cause, writer.pieces, captured)
            manifest_hash = writer.write_manifest(manifest)
            reached("manifest")
            writer.publish()
            return manifest_hash, writer.pieces

    def _manifest(
        self,
        order: TakeCheckpoint,
        position: Position,
        applied_cause: int,
        pieces: tuple[Piece, ...],
        captured: Captured,
    ) -> Manifest:
        created = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return Manifest(
            checkpoint_id=order.id,
            training_run_id=self._run_id,
            parent_checkpoint_id=self.parent,
            created=created,
            reason=order.reason.value,
            epoch=position.epoch,
            batch=position.batch,
            global_step=position.step,
            applied_cause=applied_cause,
            model_hash=self._setup.environment.model_hash,
            pieces=pieces,
            aliases=captured.aliases,
            transient=captured.transient,
            code_version=tolariad.__version__,
            torch_version=str(torch.__version__),
            torch_threads=torch.get_num_threads(),
        )
