"""The packet with which the strategy is asked: the state of a run after an epoch, in Leyline's words.

Promises: pure. Everything in it comes from the durable state and from the figures of the device. So after a restart the
same question has the same packet, except for its id, its time and the device's figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.seeds.gates import SeedMeasure
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.state.run_state import RunState
from tolariad.leyline import HardwareContext, SeedState, SystemStatePacket
from tolariad.leyline.serializer import SEEDS_MAX, VERSION

SOURCE: Final = "tolaria"
# The measurements of a seed that become its metrics, by their names.
_MEASURES: Final = ("dropped", "isolation_violations", "drift", "latency_ms")


def packet_of(
    state: RunState, epoch: int, hardware: HardwareContext, packet_id: str, wall_ns: int
) -> SystemStatePacket:
    """Return the packet for the question after `epoch`. `packet_id`: 32 hexadecimal digits."""
    progress, metrics = state.progress, state.progress.metrics
    return SystemStatePacket(
        version=VERSION,
        current_epoch=epoch,
        validation_accuracy=metrics.get("accuracy", 0.0),
        validation_loss=metrics.get("loss", 0.0),
        timestamp_ns=wall_ns,
        hardware_context=hardware,
        training_metrics=training_metrics(state, epoch),
        seed_states=list(seed_states(state)),
        packet_id=packet_id,
        global_step=progress.step,
        training_loss=progress.train_loss or 0.0,
        source_subsystem=SOURCE,
        training_run_id=state.run.run_id,
        experiment_name=state.run.name,
    )


def training_metrics(state: RunState, epoch: int) -> dict[str, float]:
    """Return the scalars by name. A number that the run does not have is left out.

    * `validated`: 1 if there was a validation after this epoch, else 0.
    * `epochs`: the number of planned epochs.
    * `gradient_norm`, `learning_rate`: those of the newest step.
    * `skipped_steps`, `epoch_steps`: the skipped and all steps of this epoch.
    * `findings`: the findings of this epoch that called for more than a record.
    * `rollbacks`: the rollbacks that the strategy has ordered, on all branches.
    """
    progress, told = state.progress, state.strategy
    is_validated = progress.epoch_validated == epoch
    found: dict[str, float | None] = {
        "validated": float(is_validated),
        "branch": float(progress.branch),
        "epochs": float(q.last_epoch(state)),
        "learning_rate": progress.lr,
        "gradient_norm": progress.grad_norm,
        "skipped_steps": float(told.ended_skipped),
        "epoch_steps": float(told.ended_steps),
        "findings": float(told.ended_findings),
        "rollbacks": float(told.rollbacks),
        "conservative": float(state.stability.conservative),
    }
    return {name: value for name, value in found.items() if value is not None}


def seed_states(state: RunState) -> Iterator[SeedState]:
    """Yield one entry for each slot, in the order of the model's modules; empty slots too."""
    for found in state.seeds.slots[:SEEDS_MAX]:
        seed = state.seeds.seed(found.name)
        measure = state.seeds.measures.get(found.name) if seed.stage is not Stage.DORMANT else None
        yield SeedState(
            seed_id=found.name,
            stage=int(seed.stage),  # type: ignore[arg-type]  # Leyline's numbers are the stage's
            gradient_norm=_known(measure.gradient_norm) if measure else 0.0,
            learning_rate=_known(measure.learning_rate) if measure else 0.0,
            layer_depth=found.layer_depth,
            metrics=dict(_seed_metrics(state, seed, measure)),
            age_epochs=max(0, state.progress.epoch_finished - seed.born_epochs) if seed.germination else 0,
        )


def _seed_metrics(state: RunState, seed: st.Seed, measure: SeedMeasure | None) -> Iterator[tuple[str, float]]:
    step = state.progress.step
    yield "alpha", seed.alpha_after(step)
    if seed.germination:
        yield "number", float(seed.germination)
        yield "steps_in_stage", float(max(0, step - seed.since_step + 1))
        yield "parameters", float(seed.parameters_added)
    if measure is not None:
        # -1 stands for what was not measured.
        yield from ((name, value) for name in _MEASURES if (value := float(getattr(measure, name))) >= 0)
    if state.quarantine.of_seed(seed.slot) is not None:
        yield "quarantined", 1.0


def _known(value: float) -> float:
    return max(0.0, value)
