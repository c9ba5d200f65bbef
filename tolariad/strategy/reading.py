"""A packet as plain values for the default policy.

Promises: any packet can be read, also one with missing keys, stages that this version does not know, NaN or infinity.
At most 100 seeds are read; the first of those with one name counts.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import Final

from msgspec import Struct

from tolariad.leyline import SeedState, SystemStatePacket

SEEDS_READ_MAX: Final = 100
_NAME_CHARS: Final = 64
_COUNT_MAX: Final = 1e9


class SeenSeed(Struct, frozen=True, kw_only=True):
    """One slot. `key`: its name, or a digest of a long name, so that what is remembered is bounded.

    `is_sick`: a number of the seed is not finite, or the run holds it in quarantine.
    """

    name: str
    key: str
    stage: int
    depth: int
    alpha: float
    violations: float
    is_sick: bool


class Seen(Struct, frozen=True, kw_only=True):
    """The state of a run. A number that the packet lacks is None.

    * `loss`: the loss of the validation or, without one, of the training; NaN if it is not finite.
    * `own_rollbacks`: the number of rollbacks that commands of the strategy began.
    """

    run: str
    branch: int
    epoch: int
    time_ns: int
    loss: float
    rate: float | None
    norm: float | None
    skipped: float
    skipped_share: float
    findings: float
    epochs_left: float | None
    own_rollbacks: int | None
    is_conservative: bool
    seeds: tuple[SeenSeed, ...]

    @property
    def has_loss(self) -> bool:
        """Whether the loss is a finite number."""
        return math.isfinite(self.loss)


def read_packet(packet: SystemStatePacket) -> Seen:
    """Return what the default policy reads of the packet. Never raises."""
    metrics = {
        name: packet.training_metrics[name]
        for name in (
            *("validated", "branch", "epochs", "learning_rate", "gradient_norm"),
            *("skipped_steps", "epoch_steps", "findings", "rollbacks", "conservative"),
        )
        if name in packet.training_metrics
    }
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    loss = packet.validation_loss if finite.get("validated", 0.0) > 0.0 else packet.training_loss
    rate = finite.get("learning_rate")
    steps = finite.get("epoch_steps", 0.0)
    return Seen(
        run=packet.training_run_id,
        branch=int(finite.get("branch", 0.0)),
        epoch=packet.current_epoch,
        time_ns=packet.timestamp_ns,
        loss=loss if math.isfinite(loss) else math.nan,
        rate=rate if rate is not None and rate > 0.0 else None,
        norm=metrics.get("gradient_norm"),
        skipped=finite.get("skipped_steps", 0.0),
        skipped_share=finite.get("skipped_steps", 0.0) / steps if steps > 0.0 else 0.0,
        findings=finite.get("findings", 0.0),
        epochs_left=finite["epochs"] - packet.current_epoch if "epochs" in finite else None,
        own_rollbacks=int(min(max(finite["rollbacks"], 0.0), _COUNT_MAX)) if "rollbacks" in finite else None,
        is_conservative=metrics.get("conservative", 0.0) != 0.0,
        seeds=_seeds(packet),
    )


def _seeds(packet: SystemStatePacket) -> tuple[SeenSeed, ...]:
    seeds: dict[str, SeenSeed] = {}
    for given in itertools.islice(packet.seed_states, SEEDS_READ_MAX):
        if given.seed_id.strip():
            seen = _seed(given)
            seeds.setdefault(seen.key, seen)
    return tuple(seeds.values())


def _seed(given: SeedState) -> SeenSeed:
    alpha, violations = given.metrics.get("alpha", 0.0), given.metrics.get("isolation_violations", 0.0)
    is_sick = not all(map(math.isfinite, (given.gradient_norm, alpha, violations)))
    return SeenSeed(
        name=given.seed_id,
        key=_key(given.seed_id),
        stage=given.stage,
        depth=given.layer_depth,
        alpha=alpha,
        violations=violations,
        is_sick=is_sick or given.metrics.get("quarantined", 0.0) != 0.0,
    )


def _key(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
