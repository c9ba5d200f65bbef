"""The parts of the slice of pruning: the open cycle, the newest analysis, masks in force, the safety window."""

from typing import Annotated, Final

import msgspec

from tolariad.core import messages as m
from tolariad.core.calc.copying import Copying
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.units import Units
from tolariad.core.calc.pruning.verdict import PruningDecision
from tolariad.core.state.fates import set_back


class OpenCycle(Copying, frozen=True):
    """A cycle whose analysis has not ended. `former_epoch`: the slice's `last_epoch` before it.

    `void`: why its result cannot be masked, as a clause; "" if it can.
    """

    cycle: int
    cause: m.Cause
    checkpoint: str
    epoch: int
    phase: PruningPhase
    share: float
    cap: float
    reason: m.CycleReason
    former_epoch: int = 0
    void: str = ""


class Found(Copying, frozen=True):
    """The newest analysis, without what only the journal needs. `units` is empty once they are masked or void.

    `void`: why its units cannot be masked any more, as a clause; "" if they can.
    """

    cycle: int
    cause: m.Cause
    epoch: int
    phase: PruningPhase
    reason: m.CycleReason
    checkpoint: str
    decision: PruningDecision
    reasons: tuple[str, ...]
    units: Units
    plan: str
    sha256: str
    channels: int
    total: int
    pruned_parameters: int
    total_parameters: int
    spread: float
    correlation: float | None
    stability: float | None
    accuracy: float | None
    estimator: str
    seconds: float
    void: str = ""
    loss: float | None = None


class MaskedSet(Copying, frozen=True):
    """The masks of one cycle that are in force. `number`: the boundary order's.

    `parameters`: how many parameters they cover; `pruned_parameters`: those of them that no older mask covers.
    """

    cycle: int
    number: int
    units: Units
    sha256: str
    channels: int
    parameters: int
    applied_before_step: int
    pruned_parameters: int = 0


_TAKEN_BACK: Final = set_back("masks and compactions that the target does not contain are taken back")


class InForce(msgspec.Struct, frozen=True):
    """`sets`: masks in force, oldest first. `removed`: how many units compactions removed, by group."""

    sets: Annotated[tuple[MaskedSet, ...], _TAKEN_BACK] = ()
    removed: Annotated[dict[str, int], _TAKEN_BACK] = {}
    removed_channels: Annotated[int, _TAKEN_BACK] = 0
    removed_parameters: Annotated[int, _TAKEN_BACK] = 0


class Past(InForce, frozen=True, kw_only=True):
    """What is in force after boundary order `number`."""

    number: int


class Window(Copying, frozen=True):
    """The safety window of a cycle's masks, which update `since_step` was the first to have.

    `until_step`: the last update that the trainer judges. `is_watched`: it did so, and no limit was exceeded.
    `accuracy`: what the newest validation that counts measured. `loss_before`: the loss before the masks in a task
    without accuracy (`accuracy_of`).
    """

    cycle: int
    sha256: str
    number: int
    since_step: int
    grace_steps: int
    until_step: int
    pinned: str
    accuracy_before: float | None
    spread: float
    is_watched: bool = False
    accuracy: float | None = None
    loss_before: float | None = None


class Rejected(msgspec.Struct, frozen=True):
    """Masks that proved harmful. `units`: in the model as it is; empty if a compaction changed it since."""

    cycle: int
    sha256: str
    units: Units
    why: str


class ImportanceFile(msgspec.Struct, frozen=True):
    """The file with the scores of a cycle. `wall`: when it was recorded."""

    cycle: int
    file: str
    size: int
    wall: int
