"""The part of the configuration by which the daemon decides about pruning. The journal holds it with the policy.

Promises: plain numbers without bounds of their own, so that a journal of any version stays readable. Phase and schedule
take it or the whole configuration: both have `pruning_phase_transition_epoch` and `prune`.
"""

from msgspec import Struct

from tolariad.core.calc.copying import Copying
from tolariad.core.calc.pruning.verdict import WindowAction
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.pruning import ShareFrom


class PlannedShare(Struct, frozen=True):
    """A share of the parameters that holds from an epoch on."""

    epoch: int
    share: float


class PrunePlan(Copying, frozen=True, kw_only=True):
    """The configured numbers, with the names of their keys. Shares ascend by epoch.

    `compact_every`: the number of sets of masks after which the channels are removed; 0: only on order.
    """

    transition_epoch: int = 30
    last_epoch: int = 120
    interval: int = 5
    budgets: tuple[PlannedShare, ...] = ()
    caps: tuple[PlannedShare, ...] = ()
    absolute_cap: float = 0.5
    accuracy_drop: float = 0.02
    spread_factor: float = 3.0
    grace_steps: int = 20
    window_steps: int = 200
    memory_action: WindowAction = WindowAction.RELEASE
    speed_action: WindowAction = WindowAction.RELEASE
    failures: int = 3
    timeout_s: float = 300.0
    compact_every: int = 0
    morphogenesis: bool = True


def plan_of(settings: Settings) -> PrunePlan:
    """Return the plan of a configuration, whether or not pruning is enabled in it."""
    prune, safety = settings.prune, settings.prune.safety
    return PrunePlan.of(
        prune,
        safety,
        transition_epoch=settings.pruning_phase_transition_epoch,
        interval=settings.pruning_checkpoint_interval,
        budgets=_planned(prune.budgets),
        caps=_planned(prune.caps),
        memory_action=WindowAction(safety.memory_action),
        speed_action=WindowAction(safety.speed_action),
        timeout_s=prune.analysis_timeout_s,
        morphogenesis=settings.enable_morphogenetic,
    )


def _planned(entries: tuple[ShareFrom, ...]) -> tuple[PlannedShare, ...]:
    return tuple(PlannedShare(entry.epoch, entry.share) for entry in entries)
