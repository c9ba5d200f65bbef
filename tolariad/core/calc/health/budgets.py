"""Every budget of the project in one table: time, overhead, memory. All code reads a budget's number here.

Promises: a name never changes and is never reused. A limit that a configuration key overrides names that key, and is
equal to the key's default.
"""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

Unit: TypeAlias = Literal["us", "ms", "s", "percent", "GB", "messages"]
# An overrun of a soft budget is recorded and may degrade features. An overrun of a safety budget ends the operation and
# takes the next stronger measure. That is the full tier after the fast one, and HALT after the full one. Neither
# discards weights.
Kind: TypeAlias = Literal["soft", "safety"]


class Budget(Struct, frozen=True):
    """One limit.

    * `source`: number and section of the source document.
    * `part_of`: the budget that it is a share of.
    * `setting`: the configuration key that overrides `limit`.
    * `unmeasured`: the reason why nothing measures it yet, or "".
    * `compares`: what is compared with what, if the name does not say it.
    """

    name: str
    limit: float
    unit: Unit
    source: str
    kind: Kind
    part_of: str = ""
    setting: str = ""
    unmeasured: str = ""
    compares: str = ""


# Shares of memory by component. The first three are on the model's device, the others in host memory.
MEMORY_SHARES: Final[Mapping[str, float]] = MappingProxyType(
    {
        "model": 0.40,
        "optimizer": 0.25,
        "gradients": 0.15,
        "checkpoints": 0.08,
        "telemetry": 0.05,
        "morphogenetic": 0.05,
        "emergency": 0.02,
    }
)


_soft = functools.partial(Budget, kind="soft")
_safety = functools.partial(Budget, kind="safety")
# Budgets that nothing measures yet, with the reason.
_UNMEASURED: Final[Mapping[str, str]] = {
    "checkpoint_strategy": "its state is a few bytes of the piece with the rest",
    **dict.fromkeys(("group_addition", "parameter_addition", "seed_registry"), "no change of a model is timed yet"),
    "importance_overhead": "importance is measured by a process of its own, and never in a step",
    "prune_rollback": "a rollback to the state before masks is timed as every rollback",
    **dict.fromkeys(
        ("telemetry_batch", "telemetry_put", "telemetry_queue"),
        "a message is queued without waiting; the status counts those that had no room",
    ),
    "memory_telemetry": "the queues are bounded by the number of messages",
    "emergency_minor": "a record is all that follows",
    "memory_emergency": "it is kept free, not used",
}

_COMPARES: Final[Mapping[str, str]] = {
    "epoch_boundary": "the time from an epoch's last report to the next one's begin, without validation, hook, "
    "checkpoint, and the wait for a processor",
    "training_degradation": "the share of timed steps that is not the task's own work: data, forward and backward "
    "pass, update, hooks. Steps beside a checkpoint do not count",
    "memory_overhead": "the staging memory of checkpoints and snapshots, and the growth of the trainer's process, with "
    "that process after its first 53 steps, without staging memory",
}

_ROWS: Final = (
    # Rates and optimizers. The 10 ms of a rebuild are for adding one group; replacing every tensor has 100 ms.
    _soft("lr_step", 5.0, "ms", "000 timing budgets"),
    _soft("lr_integrity", 2.0, "ms", "000 timing budgets"),
    _soft("group_addition", 10.0, "ms", "003 rebuild limit"),
    _soft("parameter_addition", 20.0, "ms", "000 timing budgets"),
    _soft("optimizer_rebuild", 100.0, "ms", "000 state preservation"),
    # The epoch boundary without validation.
    _soft("epoch_boundary", 18.0, "ms", "001 epoch boundary", setting="performance.epoch_boundary_ms"),
    _soft("state_assembly", 3.5, "ms", "001 epoch boundary", part_of="epoch_boundary"),
    _soft("strategy_answer", 12.0, "ms", "001 epoch boundary", part_of="epoch_boundary"),
    _soft("adaptation", 1.5, "ms", "001 epoch boundary", part_of="epoch_boundary"),
    _soft("boundary_check", 1.0, "ms", "001 epoch boundary", part_of="epoch_boundary"),
    # A later answer is recognised by its generation number and discarded; training goes on without it.
    _soft("strategy_deadline", 2.0, "s", "001 hard timeout", setting="integration.tamiyo_timeout_s"),
    _soft("seed_registry", 1.0, "ms", "004 Kasmina response"),
    # The journal: from a frame's submission until it is on disk.
    _soft("journal_append", 10.0, "ms", "01.2 write-ahead log"),
    # Telemetry. The queue is bounded by count. A put never waits; 1 ms is what it may cost.
    _soft("telemetry_batch", 2.0, "ms", "001 telemetry of a batch"),
    _soft("telemetry_put", 1.0, "ms", "003 queue"),
    _soft("telemetry_queue", 10_000, "messages", "003 queue", setting="integration.oona_backpressure_limit"),
    _soft("serialization", 80.0, "us", "004 serialization"),
    # The total overhead: of time within the same steps, of memory since the first 53 steps.
    _soft("training_degradation", 7.5, "percent", "003 targets", setting="performance.training_degradation_percent"),
    _soft("memory_overhead", 8.5, "percent", "003 targets", setting="performance.memory_overhead_percent"),
    _soft("importance_overhead", 0.1, "percent", "004 importance tracking"),
    # Checkpoints. Times are for 1 B parameters without throttling, and scale with size.
    _soft("checkpoint", 10.0, "s", "003 checkpoint"),
    _soft("checkpoint_model", 4.2, "s", "003 checkpoint", part_of="checkpoint"),
    _soft("checkpoint_optimizer", 2.8, "s", "003 checkpoint", part_of="checkpoint"),
    _soft("checkpoint_strategy", 1.5, "s", "003 checkpoint", part_of="checkpoint"),
    _soft("checkpoint_seeds", 0.8, "s", "003 checkpoint", part_of="checkpoint"),
    _soft("checkpoint_write", 0.7, "s", "003 checkpoint", part_of="checkpoint"),
    _soft("checkpoint_storage", 100.0, "GB", "004 storage", setting="checkpoint_storage_quota_gb"),
    # Rollback. The 12 s of the full tier are from COMMIT to verified state, for 1 B parameters. The 30 s are absolute.
    _safety("fast_rollback", 500.0, "ms", "003 fast path", setting="rollback.fast_path_timeout_ms"),
    _safety("fast_prepare", 150.0, "ms", "003 fast path", part_of="fast_rollback"),
    _safety("fast_commit", 250.0, "ms", "003 fast path", part_of="fast_rollback"),
    _safety("fast_confirm", 100.0, "ms", "003 fast path", part_of="fast_rollback"),
    _safety("full_rollback", 12.0, "s", "003 full path", setting="rollback.full_path_timeout_s"),
    _safety("full_load", 3.5, "s", "003 full path", part_of="full_rollback"),
    _safety("full_model", 2.8, "s", "003 full path", part_of="full_rollback"),
    _safety("full_optimizer", 2.2, "s", "003 full path", part_of="full_rollback"),
    _safety("full_strategy", 1.5, "s", "003 full path", part_of="full_rollback"),
    _safety("full_seeds", 1.2, "s", "003 full path", part_of="full_rollback"),
    _safety("full_coordination", 0.8, "s", "003 full path", part_of="full_rollback"),
    _safety("rollback_deadline", 30.0, "s", "01.2 rollback coordination"),
    _safety("prune_rollback", 30.0, "s", "004 pruning rollback"),
    # Emergencies by level, from the event to the reaction.
    _safety("emergency_critical", 100.0, "ms", "01.2 emergency levels"),
    _safety("emergency_severe", 500.0, "ms", "01.2 emergency levels"),
    _safety("emergency_major", 2.0, "s", "01.2 emergency levels"),
    _safety("emergency_minor", 5.0, "s", "01.2 emergency levels"),
    *(_soft(f"memory_{one}", share * 100.0, "percent", "003 memory split") for one, share in MEMORY_SHARES.items()),
)

BUDGETS: Final[Mapping[str, Budget]] = MappingProxyType(
    {
        one.name: replace(one, unmeasured=_UNMEASURED.get(one.name, ""), compares=_COMPARES.get(one.name, ""))
        for one in _ROWS
    }
)
# Overruns of these are events, but no failures of a breaker: a slow disk or slow telemetry must not change the run
# (P6). Slow epoch boundaries in a row cause conservative mode without a breaker; a slow part of one does not.
_NO_BREAKER: Final = frozenset(
    {
        "journal_append",
        "telemetry_put",
        "telemetry_batch",
        "epoch_boundary",
        *(one.name for one in _ROWS if one.part_of == "epoch_boundary"),
    }
)
# Overruns of these budgets are failures of the breaker of the same name: soft budgets of time.
_SOFT_TIMES: Final = frozenset(one.name for one in _ROWS if one.kind == "soft" and one.unit in {"us", "ms", "s"})
WITH_BREAKER: Final = _SOFT_TIMES - _NO_BREAKER
# Conservative mode doubles these. The source calls the strategy's deadline a hard one.
SOFT_TIMES: Final = _SOFT_TIMES - {"strategy_deadline"}
# The breakers that receive results: `lr` counts rate violations, the others count measured overruns.
FED_BREAKERS: Final = ("lr", *sorted(name for name in WITH_BREAKER if not BUDGETS[name].unmeasured))
