"""The first facts of every simulated run: its environment, its start, its daemon."""

from __future__ import annotations

from tolariad.core import messages as m

EPOCHS = 3


def environment(**changes: object) -> m.Environment:
    """An execution context; equal ones may stop a run that diverges."""
    same = {
        "python": "3.11",
        "torch": "2.13.0",
        "numpy": "2",
        "tolariad": "0.1",
        "cpu": "x",
        "threads": 1,
        "device": "cpu",
        "determinism": "strict",
        "precision": "fp32",
        "model_hash": "aa",
        "task_hash": "bb",
        "config_hash": "cc",
    }
    return m.Environment(**{**same, **changes})


def run_started(**policy: object) -> m.RunStarted:
    """The first event of every simulated run."""
    return m.RunStarted(
        run_id="00" * 16,
        name="sim",
        task="digits",
        rng_seed=1,
        config="{}",
        config_hash="cc",
        policy=m.Policy(**{"epochs": EPOCHS, "checkpoint_every_epochs": 1, "checkpoint_gap_s": 0.0, **policy}),
        version="0.1",
    )


def daemon_started() -> m.DaemonStarted:
    return m.DaemonStarted(pid=1, boot_id="b0", host="h", version="0.1", limits=m.ServiceLimits())
