"""Pruning: the operator's orders, and a cycle of analysis from its beginning to its result.

A cycle is PruneCycleBegun, then exactly one of PruneAnalyzed, PruneCycleFailed and PruneCycleCancelled. At most one is
open. It reads a committed checkpoint in a process of its own, and training goes on meanwhile. What an analysis leads to
is in `pruning_mask.py`.
"""

import enum
from typing import Annotated, ClassVar

import msgspec

from tolariad.core.calc.bounds import COUNT_MAX, unit
from tolariad.core.calc.pruning.analysis import UNITS_BYTES_MAX, AnalysisRequest
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.units import Units
from tolariad.core.calc.pruning.verdict import PruningDecision
from tolariad.core.calc.units import Bytes, CallerId, Epoch, Hex, Seconds, Step
from tolariad.core.messages.base import DaemonEffect, Event
from tolariad.core.messages.control import Command

Channels = Annotated[int, unit("channels", 0, COUNT_MAX)]
ParameterCount = Annotated[int, unit("parameters", 0, COUNT_MAX)]
Share = Annotated[float, unit("share of the parameters before any pruning", 0.0, 1.0)]
Cycle = Annotated[int, unit("cycle of the run, from 1", 0, COUNT_MAX)]
Plan = Annotated[str, unit("a JSON object for the trainer", 0, UNITS_BYTES_MAX)]


# -- orders ------------------------------------------------------------------------------------------------------------


class PruneAnalyze(Command, frozen=True, kw_only=True):
    """Analyse the newest checkpoint now. Nothing is masked: `PruneApply` does that."""


class PruneApply(Command, frozen=True, kw_only=True):
    """Mask the units that the newest analysis found, at the next step boundary.

    `cycle`: only if the newest analysis is this one; 0: whichever it is.
    """

    cycle: Cycle = 0


class PruneCompact(Command, frozen=True, kw_only=True):
    """Remove all masked units from the model at the next step boundary. The model becomes smaller."""


class PruneDisable(Command, frozen=True, kw_only=True):
    """Analyse and mask nothing from now on. Masks that are in force stay."""


class PruneEnable(Command, frozen=True, kw_only=True):
    """Follow the configured schedule again, and close the breaker of pruning."""


class PruneDisabled(Event, frozen=True, kw_only=True):
    """An operator disabled pruning. An open cycle is cancelled."""

    ORDER: ClassVar[str] = "PruneDisable"

    id: CallerId = ""


class PruneEnabled(Event, frozen=True, kw_only=True):
    """An operator enabled pruning: the schedule decides again, and failures are counted anew."""

    ORDER: ClassVar[str] = "PruneEnable"

    id: CallerId = ""


# -- cycles ------------------------------------------------------------------------------------------------------------


class CycleReason(enum.Enum):
    """Why a cycle was begun. Masks follow by themselves only from one of the schedule."""

    SCHEDULE = "schedule"
    ORDERED = "ordered"


class PruneCycleBegun(Event, frozen=True, kw_only=True):
    """The analysis of a checkpoint was begun. The checkpoint is kept as long as the cycle is open.

    `epoch`: how many had ended. `share` and `cap`: what this cycle, and all cycles together, may prune. In
    VALIDATION_ONLY they are those of the first epoch in which masks may be applied. `pruned`: channels that are masked
    or removed already; `pruned_parameters`: the parameters that went with them.
    """

    cycle: Cycle
    checkpoint: str
    step: Step
    epoch: Epoch
    phase: PruningPhase
    share: Share
    cap: Share
    pruned: Channels = 0
    pruned_parameters: ParameterCount = 0
    reason: CycleReason = CycleReason.SCHEDULE
    id: CallerId = ""

    @classmethod
    def accepts(cls) -> tuple[str, ...]:
        """Return the names of the orders that an event of this type accepts."""
        return (PruneAnalyze.__name__,)

    @property
    def accepted(self) -> str:
        """Return the name of the order that the event accepts, or ""."""
        return PruneAnalyze.__name__ if self.reason is CycleReason.ORDERED else ""


class PruneAnalyzed(Event, frozen=True, kw_only=True):
    """An analysis is complete: it found units to mask, and judged them on a copy.

    `reasons`: why the decision is not GO, as sentences. `units`: only those that this cycle adds; after CONDITIONAL_GO
    half of the budget. `plan`: the coordinates of the parameters that go with them. `sha256`: the hash of their masks
    by parameter (MaskSet.sha256). `channels`: how many these units are. `total`: channels of the model before any
    pruning, removed ones included. `pruned_parameters`: how many parameters go with these units, without those that are
    pruned already. `total_parameters`: the model's before any pruning. Budgets count parameters. `accuracy` and
    `accuracy_masked`: on the held-out slice. `loss` and `loss_masked`: the same of a task without accuracy. `spread`:
    how far repeated validations lay apart. `correlation`: rank correlation of the importance with the measured change
    of the loss. `stability`: the same with the last ranking, over groups of unchanged width. `importance`: the file
    with the scores, relative to the run's folder, and its size. None: not measured.
    """

    cycle: Cycle
    decision: PruningDecision
    reasons: tuple[str, ...] = ()
    units: Units = msgspec.field(default_factory=dict)
    plan: Plan = ""
    sha256: Hex = ""
    channels: Channels = 0
    total: Channels = 0
    pruned_parameters: ParameterCount = 0
    total_parameters: ParameterCount = 0
    groups: int = 0
    refused: int = 0
    samples: int = 0
    estimator: str = ""
    accuracy: float | None = None
    accuracy_masked: float | None = None
    spread: float = 0.0
    correlation: float | None = None
    stability: float | None = None
    importance: str = ""
    importance_size: Bytes = 0
    seconds: Seconds = 0.0
    loss: float | None = None
    loss_masked: float | None = None


class PruneCycleFailed(Event, frozen=True, kw_only=True):
    """The analysis did not come to a result, or to one that cannot be used. It counts for the breaker of pruning."""

    cycle: Cycle
    why: str


class PruneCycleCancelled(Event, frozen=True, kw_only=True):
    """The analysis was given up before its result: by an order, a rollback, low space, or the end of run or daemon."""

    cycle: Cycle
    why: str


class PruneBreakerOpened(Event, frozen=True, kw_only=True):
    """`failures` cycles failed in a row, so nothing is pruned until an operator enables it. `why`: the last failure."""

    failures: int
    why: str


class ImportanceRemoved(Event, frozen=True, kw_only=True):
    """The file with the importance of a cycle is too old, or over the quota, and is removed."""

    cycle: Cycle
    file: str
    why: str
    size: Bytes = 0


# -- effects -----------------------------------------------------------------------------------------------------------


class AnalyzeCheckpoint(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: carry out this analysis in a process of its own, within `limit_s`, and give an AnalysisReply."""

    request: AnalysisRequest
    limit_s: Seconds


class CancelAnalysis(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: end the analysis of this cycle. Its answer is no longer wanted."""

    cycle: Cycle


class SweepImportance(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: remove the importance of all cycles up to `highest`, except the files `kept`.

    Such a file was written by an analysis that no event tells of, or its daemon ended before it removed the file.
    """

    kept: tuple[str, ...]
    highest: Cycle


class RemoveImportance(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: remove these files, relative to the run's folder. A file that is gone already is no error."""

    files: tuple[str, ...]
