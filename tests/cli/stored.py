"""A run with checkpoints on disk, as the trainer writes them."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import save

from tests.control.fakes import Recorder
from tolariad.core import messages as m
from tolariad.storage import CheckpointWriter, Manifest


class StoringRecorder(Recorder):
    """Writes real files. The weights are the number of the step, the averages half of it."""

    averages = False

    def write_checkpoint(self):
        progress = self.state.progress
        opened = self.state.checkpoints.open[-1]
        weights = {"weight": np.full((2, 3), progress.step, np.float32), "count": np.arange(3)}
        with CheckpointWriter(self.journal_path.parent / "checkpoints", opened.id) as writer:
            writer.add("model-00000.safetensors", [save(weights)])
            if self.averages:
                writer.add("ema-00000.safetensors", [save({"weight": weights["weight"] / 2})])
            manifest = Manifest(
                checkpoint_id=opened.id,
                training_run_id="00ff",
                parent_checkpoint_id="",
                created_ns=1,
                reason=opened.reason.value,
                epoch=max(progress.epoch, 1),
                batch=progress.batch,
                global_step=progress.step,
                model_hash="ab",
                chunks=(),
                aliases={"tied": "weight"},
                transient=("count",),
            )
            manifest_hash, manifest = writer.write_manifest(manifest)
            writer.publish()
        self.report(
            m.CheckpointWrittenReport(
                id=opened.id,
                step=manifest.global_step,
                epoch=manifest.epoch,
                batch=manifest.batch,
                manifest=manifest_hash,
                pieces=writer.pieces,
                seconds=0.1,
            )
        )


def record(run_dir, *, averages=False, steps=12):
    """Twelve steps, ten in an epoch, with checkpoints c000001 at step 0 and c000002 at step 10."""
    made = StoringRecorder(run_dir / "journal", segment_bytes=1 << 20)
    made.averages = averages
    made.begin_run()
    for _ in range(steps):
        made.step()
    made.journal.close()
    return run_dir
