"""Packets for the tests of the strategy: a healthy run by default, each field as a test wants it."""

from __future__ import annotations

from hypothesis import strategies as st

from tolariad.leyline import SeedLifecycleStage as Stage
from tolariad.leyline import SeedState, SystemStatePacket

RUN = "0f" * 16


def seed(name: str, stage: int = Stage.SEED_STAGE_DORMANT, *, depth: int = 0, norm: float = 1.0, **metrics: float):
    """Return the state of one slot."""
    return SeedState(seed_id=name, stage=stage, layer_depth=depth, gradient_norm=norm, metrics=metrics)


def packet(epoch: int, loss: float = 1.0, seeds=(), **metrics: float) -> SystemStatePacket:
    """Return the packet of a run of 100 epochs after `epoch`."""
    told = {"validated": 1.0, "branch": 0.0, "epochs": 100.0, "learning_rate": 0.1, "rollbacks": 0.0}
    return SystemStatePacket(
        version=1,
        current_epoch=epoch,
        validation_loss=loss,
        training_loss=loss,
        timestamp_ns=1_700_000_000_000_000_000 + epoch,
        training_metrics={key: value for key, value in (told | metrics).items() if value is not None},
        seed_states=list(seeds),
        training_run_id=RUN,
        source_subsystem="tolaria",
    )


FLOATS = st.floats(width=32) | st.sampled_from([0.0, -1.0, 1.0, 3.0, float("nan"), float("inf"), float("-inf")])
METRICS = (
    *("validated", "branch", "epochs", "learning_rate", "gradient_norm", "skipped_steps", "epoch_steps"),
    *("findings", "rollbacks", "conservative", "unheard"),
)
SEEDS = st.builds(
    SeedState,
    seed_id=st.sampled_from(["a", "b", "", " ", "n" * 300]) | st.text(max_size=8),
    stage=st.integers(0, 14),
    layer_depth=st.integers(0, 2**32 - 1),
    gradient_norm=FLOATS,
    age_epochs=st.integers(0, 2**32 - 1),
    metrics=st.dictionaries(st.sampled_from(["alpha", "isolation_violations", "quarantined", "x"]), FLOATS, max_size=4),
)
PACKETS = st.builds(
    SystemStatePacket,
    version=st.just(1),
    current_epoch=st.integers(0, 12) | st.integers(0, 2**32 - 1),
    validation_loss=FLOATS,
    training_loss=FLOATS,
    timestamp_ns=st.integers(0, 2**64 - 1),
    training_metrics=st.dictionaries(st.sampled_from(METRICS), FLOATS, max_size=11),
    seed_states=st.lists(SEEDS, max_size=5),
    training_run_id=st.text(max_size=4),
)
