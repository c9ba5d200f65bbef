"""Queries: the figures that a program's `get_metrics` shows."""

from __future__ import annotations

from tolariad.core import state as st


def figures_of(progress: st.Progress) -> dict[str, float]:
    """Return the figures of the last step and of the last validation, without those that there are not yet."""
    found: dict[str, float | None] = {
        **progress.step_metrics,
        "step": float(progress.step),
        "epoch": float(progress.epoch),
        "loss": progress.loss,
        "grad_norm": progress.grad_norm,
        "lr": progress.lr,
        "train_loss": progress.train_loss,
        **{f"val_{name}": value for name, value in progress.metrics.items()},
    }
    return {name: value for name, value in found.items() if value is not None}
