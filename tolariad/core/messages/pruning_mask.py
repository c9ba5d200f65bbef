"""Masks on a run's path: applied at a boundary, watched, released or rejected, and at last removed by a compaction.

Three kinds of boundary orders: MaskUnits, ReleaseMasks, CompactModel. After masks act a safety window is open. It ends
in MaskSetPassed or MaskSetRejected, or with a rollback to a state without the masks.

Promises: an order that acts holds what a re-run or a restart needs to do the same without an analysis.
"""

from typing import Annotated, ClassVar, Self

from msgspec.structs import replace

from tolariad.core.calc.bounds import COUNT_MAX, TEXT_CHARACTERS_MAX, unit
from tolariad.core.calc.pruning.units import Units
from tolariad.core.calc.pruning.verdict import Trip, WindowAction
from tolariad.core.calc.units import Bytes, Hex, Seconds, Step
from tolariad.core.messages.base import Event, Report
from tolariad.core.messages.boundary import BoundaryOrder, BoundaryOrderReport, Outcome
from tolariad.core.messages.pruning import Channels, Cycle, ParameterCount, Plan

Steps = Annotated[int, unit("optimizer updates", 0, COUNT_MAX)]
Removal = Annotated[str, unit("a JSON object, its keys sorted", 0, TEXT_CHARACTERS_MAX)]


# -- masks -------------------------------------------------------------------------------------------------------------


class MaskUnits(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: mask the units of a cycle, all or none, and watch the updates after it.

    `units`: indices in the model as it is, without those masked before. `sha256`: the hash of these units' masks by
    parameter; a trainer whose masks have another refuses. `plan`: as in Analysis. `checkpoint`: the one that was
    analysed. `grace_steps` updates are not judged; the `window_steps` after them are. The others are for the record.
    `channels`: how many the units are; `total`: how many the model had before any pruning. `pruned_parameters` and
    `total_parameters`: the same in parameters, as the analysis counted them. `spread`: how far repeated validations lay
    apart.
    """

    ACCEPTS: ClassVar[tuple[str, ...]] = ("PruneApply",)
    RECORD: ClassVar[tuple[str, ...]] = (
        *("cause", "channels", "total"),
        *("pruned_parameters", "total_parameters", "spread"),
    )

    cycle: Cycle
    units: Units
    sha256: Hex
    plan: Plan = ""
    checkpoint: str = ""
    grace_steps: Steps = 0
    window_steps: Steps = 0
    channels: Channels = 0
    total: Channels = 0
    pruned_parameters: ParameterCount = 0
    total_parameters: ParameterCount = 0
    spread: float = 0.0

    @property
    def brief(self) -> Self:
        """Return the order without units and plan."""
        return replace(self, units={}, plan="")


class Masking(Outcome, frozen=True, kw_only=True):
    """Of MaskUnits.

    `pinned`: the checkpoint before the masks, to which the run goes back if they prove harmful. `accuracy_before`: the
    last validation's accuracy. `parameters`: how many parameters of the model these masks cover; `pruned_parameters`:
    those of them that no older mask covers, as the trainer counted them. `accuracy_now`, `accuracy_masked`: on held-out
    data at the boundary, without the masks and with them; None: not measured. `loss_before`: the last validation's
    loss, if the task measures no accuracy. 1 - the relative rise of the loss stands for the accuracy then, until the
    window ends.
    """

    pinned: str = ""
    accuracy_before: float | None = None
    parameters: ParameterCount = 0
    pruned_parameters: ParameterCount = 0
    model_hash: Hex = ""
    accuracy_now: float | None = None
    accuracy_masked: float | None = None
    loss_before: float | None = None


class MasksAppliedReport(BoundaryOrderReport, frozen=True, kw_only=True):
    """The answer to MaskUnits that acts. Fields as in Masking."""

    parameters: ParameterCount = 0
    pruned_parameters: ParameterCount = 0
    model_hash: Hex = ""
    accuracy_now: float | None = None
    accuracy_masked: float | None = None


# -- the safety window -------------------------------------------------------------------------------------------------


class PruneWatchReport(Report, frozen=True, kw_only=True):
    """The measurements in the safety window of `cycle`, reported once: when a limit is exceeded, else when the window
    ends.

    `step`: the newest update that was judged. `norm_ratio`: median gradient norm, relative to that before the masks.
    `speed_ratio`: speed of training, relative. `memory`: share of the memory in use. None: not measured.
    """

    cycle: Cycle
    step: Step
    trips: tuple[Trip, ...] = ()
    norm_ratio: float | None = None
    speed_ratio: float | None = None
    memory: float | None = None


class PruneWatched(Event, frozen=True, kw_only=True):
    """The safety window of `cycle` is measured. Fields as in PruneWatchReport."""

    cycle: Cycle
    step: Step
    trips: tuple[Trip, ...] = ()
    norm_ratio: float | None = None
    speed_ratio: float | None = None
    memory: float | None = None


class MaskSetPassed(Event, frozen=True, kw_only=True):
    """The masks of `cycle` stay: no limit was exceeded in their safety window. Failures are counted anew.

    `accuracy_before` and `accuracy`: what the validations before and after the masks measured; None: there was none.
    With `loss_before` the task measures no accuracy: these are then 1, and 1 - the relative rise of its loss.
    """

    cycle: Cycle
    accuracy_before: float | None = None
    accuracy: float | None = None
    loss_before: float | None = None


class MaskSetRejected(Event, frozen=True, kw_only=True):
    """The masks of `cycle` proved harmful and are never applied again. It counts for the breaker of pruning.

    RELEASE: they are lifted at the next boundary, and weights stay. ROLLBACK: the run goes back to `checkpoint`.
    """

    cycle: Cycle
    sha256: Hex
    trips: tuple[Trip, ...]
    action: WindowAction
    checkpoint: str = ""
    why: str = ""


# -- release -----------------------------------------------------------------------------------------------------------


class ReleaseMasks(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: lift the masks of `cycle`. The masked weights get the numbers that they had before."""

    cycle: Cycle


class MasksLifted(Outcome, frozen=True, kw_only=True):
    """Of ReleaseMasks. `parameters`: how many parameters of the model the masks covered."""

    parameters: ParameterCount = 0


class MasksReleasedReport(BoundaryOrderReport, frozen=True, kw_only=True):
    """The answer to ReleaseMasks that acts. `parameters`: how many parameters of the model the masks covered."""

    parameters: ParameterCount = 0


# -- compaction --------------------------------------------------------------------------------------------------------


class CompactModel(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: remove the masked `units`. They are all that are masked; if others are, it refuses.

    `cycle`: the newest cycle of these masks. `removal`: what the trainer recorded of it. A re-run gets the recorded one
    and removes the same without tracing the model; otherwise it is "".
    """

    ACCEPTS: ClassVar[tuple[str, ...]] = ("PruneCompact",)

    cycle: Cycle
    units: Units
    removal: Removal = ""

    @property
    def brief(self) -> Self:
        """Return the order without units and removal."""
        return replace(self, units={}, removal="")


class Compaction(Outcome, frozen=True, kw_only=True):
    """Of CompactModel: update `applied_before_step` is the first one of the smaller model.

    It is the entry `prune.compact` of the architecture ledger. With its arguments, the order's `removal`, the same is
    removed from the model as the task builds it. `channels`: how many were removed. `bytes`: the size of parameters,
    buffers and optimizer state. `step_s`: the seconds of a forward and backward pass, measured on copies. `difference`:
    the greatest difference of the outputs.
    """

    channels: Channels = 0
    parameters_before: ParameterCount = 0
    parameters: ParameterCount = 0
    bytes_before: Bytes = 0
    bytes: Bytes = 0
    step_s_before: Seconds | None = None
    step_s: Seconds | None = None
    difference: float = 0.0


class ModelCompactedReport(BoundaryOrderReport, frozen=True, kw_only=True):
    """The answer to CompactModel that acts. Fields as in CompactModel and Compaction."""

    removal: Removal = ""
    parameters_before: ParameterCount = 0
    parameters: ParameterCount = 0
    bytes_before: Bytes = 0
    bytes: Bytes = 0
    step_s_before: Seconds | None = None
    step_s: Seconds | None = None
    difference: float = 0.0
