"""The metrics of a run for Prometheus: which there are, and where each comes from.

Promises: pure. The ten names of source 003 keep their names; two of them break Prometheus's conventions, and have twins
beside them that do not. Counters are totals of the whole journal. A number that is not known is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from tolariad.control.replies import RunStatus
from tolariad.control.reply_tables import RateTable
from tolariad.core import state as st
from tolariad.daemon.gpu_figures import GpuFigures
from tolariad.telemetry.exposition import Family, Sample, counter, gauge, histogram
from tolariad.telemetry.totals import BOUNDS, Totals

_GB: Final = 1e9
_COUNTERS: Final = {
    "epochs_completed": "Epochs that were completed, also those that a rollback gave up.",
    "rollbacks_initiated": "Rollbacks that were begun.",
    "rollbacks_succeeded": "Rollbacks that were completed.",
    "rollbacks_aborted": "Rollbacks that were given up.",
    "lr_violations": "Learning rates that differed from the ordered ones. None of them reached an update.",
    "steps_completed": "Optimizer updates that were recorded, also those that a rollback gave up.",
    "steps_skipped": "Batches that led to no update.",
    "validations_completed": "Validations that were completed.",
    "checkpoints_committed": "Checkpoints that were committed.",
    "checkpoints_aborted": "Checkpoints that were begun and not committed.",
    "checkpoints_rejected": "Checkpoints that did not verify.",
    "findings": "Findings of the detector.",
    "budget_overruns": "Overruns of budgets that were recorded.",
    "conservative_mode_entered": "How often the run entered conservative mode.",
    "daemon_starts": "Starts of the recorder on this run.",
    "trainer_starts": "Trainers that were started.",
    "trainer_deaths": "Trainers that died.",
    "commands_refused": "Orders with an id that were refused.",
}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a page is made from. `totals` None: they are not known yet. Memory in bytes; the disk as last measured.

    `gpu`: the figures of the GPU that the trainer has reported, if it is one and can be read.
    """

    status: RunStatus
    rates: RateTable
    totals: Totals | None
    memory: int
    disk_free: int
    disk_floor: int
    gpu: GpuFigures | None = None


def families(facts: Facts) -> Iterator[Family]:
    """Yield every family of the page."""
    yield from _sources(facts)
    yield from _run(facts)
    yield from _safety(facts.status)
    yield from _parts(facts.status)
    yield from _ranks(facts.status)
    yield from _gpu(facts.gpu)
    yield from _receivers(facts.status)


def _sources(facts: Facts) -> Iterator[Family]:
    """Yield the ten of source 003, the twins of two of them, and further counters."""
    status, totals = facts.status, facts.totals
    if totals is not None:
        for name, about in _COUNTERS.items():
            yield counter(f"tolaria_{name}_total", about, totals.counters.get(name, 0))
        for name in BOUNDS:
            yield _durations(totals, name, f"tolaria_{name}_duration_seconds", f"Duration of each {name}.")
        spent = tuple(Sample(ns / 1e9, {"on": what}) for what, ns in totals.spent_ns.items())
        about = "Time while a recorder ran, by what it was spent on. The share of `training` is the goodput."
        yield Family("tolaria_spent_seconds_total", "counter", about, spent)
        old = "Deprecated: tolaria_rollback_duration_seconds."
        yield _durations(totals, "rollback", "tolaria_rollback_duration_ms", old, scale=1000.0)
    yield gauge("tolaria_current_loss", "Loss of the last step.", _value(status.loss, status.loss_state))
    yield gauge("tolaria_current_accuracy", "Accuracy of the last validation, from 0 to 1.", status.accuracy)
    yield gauge("tolaria_memory_usage_gb", "Deprecated: tolaria_memory_usage_bytes.", facts.memory / _GB)
    yield gauge("tolaria_memory_usage_bytes", "Memory of the recorder and the trainer.", facts.memory)


def _durations(totals: Totals, name: str, metric: str, about: str, *, scale: float = 1.0) -> Family:
    found = totals.durations[name]
    return histogram(metric, about, BOUNDS[name], found.counts, found.sum_s, scale=scale)


def _run(facts: Facts) -> Iterator[Family]:
    status = facts.status
    phases = tuple(Sample(float(one.value == status.phase), {"phase": one.value}) for one in st.Phase)
    yield Family("tolaria_phase", "gauge", "1 for the phase of the run, 0 for the others.", phases)
    yield gauge("tolaria_epoch", "Epoch that is being trained.", status.epoch)
    yield gauge("tolaria_epochs_planned", "Epochs of the whole run.", status.epochs)
    yield gauge("tolaria_step", "Last applied step of the present line.", status.step)
    yield gauge("tolaria_steps_planned", "Steps of the whole run.", status.steps_total)
    yield gauge("tolaria_steps_per_second", "Recent speed.", status.steps_per_s)
    yield gauge("tolaria_seconds_left", "Time left at this speed.", status.eta_s)
    norm = _value(status.grad_norm, status.grad_norm_state)
    yield gauge("tolaria_gradient_norm", "Gradient norm of the last step that measured it.", norm)
    yield gauge("tolaria_best_accuracy", "Best accuracy of all validations.", status.best_accuracy)
    rates = tuple(Sample(one.now, {"group": one.name}) for one in facts.rates.groups if one.now is not None)
    yield Family("tolaria_learning_rate", "gauge", "Rate of the last update, by parameter group.", rates)
    values = tuple(Sample(value, {"metric": name}) for name, value in status.metrics.items() if value is not None)
    yield Family("tolaria_validation", "gauge", "Results of the last validation, by name.", values)
    values = tuple(Sample(value, {"metric": name}) for name, value in status.step_metrics.items() if value is not None)
    yield Family("tolaria_step_metric", "gauge", "Metrics of the last step, by name.", values)
    yield gauge("tolaria_disk_free_bytes", "Free space on the journal's disk, as last measured.", facts.disk_free)
    yield gauge("tolaria_disk_floor_bytes", "Free space below which the run pauses.", facts.disk_floor)


def _safety(status: RunStatus) -> Iterator[Family]:
    journal, trainer = status.journal, status.trainer
    yield gauge("tolaria_journal_events", "Number of the last durable event.", journal.seq)
    yield gauge("tolaria_journal_durable", "0 if nothing can be recorded any more.", journal.failed is None)
    yield gauge("tolaria_journal_write_age_seconds", "Age of the write in flight; 0 without one.", journal.write_age_s)
    yield gauge("tolaria_trainer_alive", "1 while a trainer lives.", trainer.alive if trainer else False)
    age = trainer.heartbeat_age_s if trainer else None
    yield gauge("tolaria_trainer_heartbeat_age_seconds", "Age of the trainer's last heartbeat.", age)
    yield gauge("tolaria_conservative_mode", "1 in conservative mode.", status.conservative is not None)
    yield gauge("tolaria_emergency", "1 while an emergency is raised.", status.emergency is not None)
    yield gauge("tolaria_disk_low", "1 while the journal's disk is low.", status.disk_low is not None)
    newest = status.checkpoint
    yield gauge("tolaria_checkpoint_step", "Step of the newest usable checkpoint.", newest.step if newest else None)
    age = newest.age_s if newest else None
    yield gauge("tolaria_checkpoint_age_seconds", "Age of the newest usable checkpoint.", age)
    yield gauge("tolaria_checkpoint_bytes", "Size of the newest usable checkpoint.", newest.size if newest else None)


def _parts(status: RunStatus) -> Iterator[Family]:
    seeds = tuple(Sample(one.alpha, {"slot": one.slot, "stage": one.stage}) for one in status.seeds)
    yield Family("tolaria_seed_alpha", "gauge", "Share of each seed in the output, by slot and stage.", seeds)
    pruning = status.pruning
    if pruning is not None:
        yield gauge("tolaria_pruned_ratio", "Share of the parameters that is masked or removed.", pruning.share)
        yield gauge("tolaria_pruning_cycles", "Cycles of pruning so far.", pruning.cycles)


def _ranks(status: RunStatus) -> Iterator[Family]:
    ranks = status.ranks.ranks if status.ranks is not None else ()
    for name, about in (("compute", "of its own work"), ("wait", "of waiting for the other ranks")):
        found = ((one, getattr(one, f"{name}_s")) for one in ranks)
        samples = tuple(Sample(value, {"rank": str(one.rank)}) for one, value in found if value is not None)
        yield Family(f"tolaria_rank_{name}_seconds", "gauge", f"Mean time of a rank's step {about}.", samples)
    alive = tuple(
        Sample(float(one.process == "running"), {"rank": str(one.rank)}) for one in ranks if one.process is not None
    )
    yield Family("tolaria_rank_alive", "gauge", "1 while the process of the rank runs.", alive)


def _gpu(gpu: GpuFigures | None) -> Iterator[Family]:
    if gpu is None:
        return
    device = {"device": gpu.device}
    yield gauge("tolaria_gpu_memory_used_bytes", "Used memory of the trainer's GPU.", gpu.used, **device)
    yield gauge("tolaria_gpu_memory_bytes", "Memory of the trainer's GPU.", gpu.total, **device)
    yield gauge("tolaria_gpu_utilization_ratio", "Load of the trainer's GPU, from 0 to 1.", gpu.load, **device)
    yield gauge("tolaria_gpu_temperature_celsius", "Temperature of the trainer's GPU.", gpu.celsius, **device)


def _receivers(status: RunStatus) -> Iterator[Family]:
    """Yield what became of telemetry. These counters are those of this recorder's process."""
    sorts = ("sent", "dropped", "thinned")
    counts = tuple(
        Sample(getattr(one, sort), {"receiver": one.to, "outcome": sort}) for one in status.receivers for sort in sorts
    )
    yield Family("tolaria_telemetry_messages_total", "counter", "Telemetry messages, by receiver and outcome.", counts)
    waiting = tuple(Sample(one.waiting, {"receiver": one.to}) for one in status.receivers)
    yield Family("tolaria_telemetry_waiting", "gauge", "Telemetry messages that wait, by receiver.", waiting)


def _value(value: float | None, state: str | None) -> float | None:
    """Return a number of the status as it was; None if there is none."""
    words = {"nan": float("nan"), "pos_inf": float("inf"), "neg_inf": float("-inf")}
    return words.get(state or "", value)
