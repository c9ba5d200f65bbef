"""The result of a call of `train`, or of a loop of the program's own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tolariad.core.state.run_state import RunState


class TrainingResult(msgspec.Struct, frozen=True):
    """The run at the end of `train`: the phase is `completed` or `stopped`; `metrics` are of the last validation."""

    run_dir: Path
    phase: str
    epochs: int
    steps: int
    metrics: dict[str, float]
    last_checkpoint: str | None

    @classmethod
    def of(cls, state: RunState, run_dir: Path) -> TrainingResult:
        """Return the result of the run in this folder from its state."""
        newest = state.checkpoints.newest
        return cls(
            run_dir=run_dir,
            phase=state.run.phase.value,
            epochs=state.progress.epoch_finished,
            steps=state.progress.step,
            metrics=dict(state.progress.metrics),
            last_checkpoint=newest.id if newest else None,
        )
