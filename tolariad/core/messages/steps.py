"""Steps, epochs and validations: the trainer's reports and their events.

A step is reported after its update was applied.
"""

import enum
from typing import Final, TypeAlias

import msgspec

from tolariad.core.calc.detection.rules import Verdict
from tolariad.core.calc.units import Batch, Digest32, Digest64, Epoch, Loss, Name, Rate, Seconds, Step
from tolariad.core.messages.base import Event, Report, TrainerEffect
from tolariad.core.messages.budget import BudgetHistogram

# The gradient norm of a step that did not measure it (`grad_norm.every`). No norm is negative; a NaN would be a
# measured one.
NOT_MEASURED: Final = -1.0


class SkipReason(enum.Enum):
    """Why no update was made from a batch.

    `overflow`: fp16 gradients were not finite at their scale. `non_finite`, `spike`: findings of the detector; the
    batch leaves no trace in running statistics or random state. `quarantined`: the batch was not read, so there is no
    loss (a NaN) and no gradient norm (-1).
    """

    OVERFLOW = "overflow"
    NON_FINITE = "non_finite"
    SPIKE = "spike"
    QUARANTINED = "quarantined"


class Limit(enum.Enum):
    """The limit that ended training before all its epochs were done (`stop` in the configuration)."""

    EPOCHS = "epochs"
    STEPS = "steps"
    HOURS = "hours"
    PATIENCE = "patience"
    TOKENS = "tokens"


class StepReport(Report, frozen=True, kw_only=True):
    """Step `step` was applied. `rates` is a 64-bit digest over the rates of all groups, `lr` the first group's rate.

    `metrics`: the task's, in the order of the run's names (MetricsNamed); NaN for one that the step does not have.
    `data`: the digest of its batches; 0 if there is none.
    """

    step: Step
    epoch: Epoch
    batch: Batch
    loss: Loss
    grad_norm: float
    lr: Rate
    rates: Digest64
    metrics: tuple[float, ...] = ()
    data: Digest32 = 0


class MetricsNamedReport(Report, frozen=True, kw_only=True):
    """Later steps have metrics with these names, after those that the run has already."""

    names: tuple[Name, ...]


# The fields of a StepReport, in their order, up to the metrics. Every step uses this tuple: a Struct costs more.
StepValues: TypeAlias = "tuple[int, int, int, float, float, float, int]"


def report_of(values: StepValues, metrics: tuple[float, ...] = (), data: int = 0) -> StepReport:
    """Return the values as a report."""
    step, epoch, batch, loss, grad_norm, lr, rates = values
    return StepReport(
        step=step,
        epoch=epoch,
        batch=batch,
        loss=loss,
        grad_norm=grad_norm,
        lr=lr,
        rates=rates,
        metrics=metrics,
        data=data,
    )


class StepSkippedReport(Report, frozen=True, kw_only=True):
    """The batches up to `batch` led to no update. `step` is the number of the next applied one.

    `verdict`: the detector's finding, if it is the reason.
    """

    step: Step
    epoch: Epoch
    batch: Batch
    loss: Loss
    grad_norm: float
    reason: SkipReason
    verdict: Verdict | None = None


class DigestMethod(enum.Enum):
    """How the digests of tensors are computed. Those of two methods cannot be compared.

    `xxh3`: XXH3 of the bytes, in row-major order, on the CPU. `mixed`: a sum over mixed words and places, on a device.
    """

    XXH3 = "xxh3"
    MIXED = "mixed"


class ParametersDigestedReport(Report, frozen=True, kw_only=True):
    """The fields of ParametersDigested."""

    step: Step
    digest: Digest64
    tensors: tuple[Digest64, ...]
    method: DigestMethod
    names: tuple[str, ...] = ()
    checkpoint: str = ""


class ValidationReport(Report, frozen=True, kw_only=True):
    """A validation is done: after `epoch`, or within it after `batch` of its batches.

    `metrics` are means over all samples; known names are `loss` and `accuracy`. `batch`: 0 after the epoch. The trainer
    waits for `Continue(epoch, batch)` after one within an epoch.
    """

    epoch: Epoch
    step: Step
    metrics: dict[str, float]
    samples: int
    seconds: Seconds
    batch: Batch = 0


class EpochReport(Report, frozen=True, kw_only=True):
    """Epoch `epoch` is done, including its validation. The trainer waits for `Continue(epoch)`.

    `tallies`: measurements of budgets since the last report. `metrics`: what stands for a metric's steps in place of
    their mean, by name: a metric of torchmetrics that is no mean.
    """

    epoch: Epoch
    step: Step
    tallies: tuple[BudgetHistogram, ...] = ()
    metrics: dict[str, float] = {}  # noqa: RUF012 - msgspec copies it


class TrainingEndedReport(Report, frozen=True, kw_only=True):
    """The last epoch is done, and the trainer waits for orders. `tallies` as in EpochReport."""

    step: Step
    tallies: tuple[BudgetHistogram, ...] = ()


class StepCompleted(Event, frozen=True, kw_only=True):
    """An optimizer update was applied. Recorded once, even if it was run again. `grad_norm` -1: not measured.

    `metrics`: the task's, in the order of the run's names (MetricsNamed); NaN for one that the step does not have.
    `data`: the digest of its batches, by which a re-run notices other data; 0 if there is none.
    """

    step: Step
    epoch: Epoch
    batch: Batch
    loss: Loss
    grad_norm: float
    lr: Rate
    rates: Digest64
    branch: int = 0
    metrics: tuple[float, ...] = ()
    data: Digest32 = 0


class MetricsNamed(Event, frozen=True, kw_only=True):
    """Later steps have metrics with these names, after those of earlier events. A run keeps its names for ever."""

    names: tuple[Name, ...]


class ParametersDigested(Event, frozen=True, kw_only=True):
    """The state of training after step `step`, as digests: parameters, buffers, the optimizers' tensors, averages.

    `tensors`: one digest each. `names`: theirs, if they are not those of the event before; that of a checkpoint has
    them. `digest`: over all of `tensors`. `checkpoint`: the id of the one whose copy was made at this moment, after the
    orders that had acted there; "" if it is the state immediately after the update. It never changes
    the state of the run.
    """

    skippable: bool = False  # type: ignore[misc]  # a field of this type alone
    step: Step
    digest: Digest64
    tensors: tuple[Digest64, ...]
    method: DigestMethod
    branch: int = 0
    names: tuple[str, ...] = ()
    checkpoint: str = ""


class StepSkipped(Event, frozen=True, kw_only=True):
    """Batches were read, but no update was made. No step is counted, and no rate moves on.

    `step` is the number of the update that was not made; the next applied one gets it.
    """

    step: Step
    epoch: Epoch
    batch: Batch
    loss: Loss
    grad_norm: float
    reason: SkipReason
    branch: int = 0


class EpochStarted(Event, frozen=True, kw_only=True):
    """An epoch started: its first batch was about to be read."""

    epoch: Epoch


class EpochFinished(Event, frozen=True, kw_only=True):
    """An epoch is done. `train_loss` is the mean over the folded steps of this epoch.

    `metric`: the value that plateaus are judged by: the validation's loss, else `train_loss`. `metric_name`: its name.
    `metrics`: the means of the steps' metrics. A NaN counts in none; a metric that has no number is left out.
    """

    epoch: Epoch
    step: Step
    steps: int
    train_loss: Loss
    seconds: Seconds
    metric: Loss | None = None
    metric_name: str = ""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)


class ValidationBegun(Event, frozen=True, kw_only=True):
    """A validation began. It ends in exactly one of ValidationFinished and ValidationAborted.

    `batch`: the batches of the epoch that were consumed, if it is within the epoch; 0 after the epoch.
    """

    epoch: Epoch
    step: Step
    batch: Batch = 0


class ValidationFinished(Event, frozen=True, kw_only=True):
    """A validation is done. Its metrics are means over all samples. `batch` is that of ValidationBegun."""

    epoch: Epoch
    step: Step
    metrics: dict[str, float]
    samples: int
    seconds: Seconds
    batch: Batch = 0


class ValidationAborted(Event, frozen=True, kw_only=True):
    """A validation did not end. It is run again."""

    epoch: Epoch
    why: str


class ValidationImproved(Event, frozen=True, kw_only=True):
    """The validation after `epoch`, or within it after `batch` of its batches, was better than all before it.

    `step`: the last step before a validation within an epoch; 0 after the epoch.
    """

    epoch: Epoch
    metric: str
    value: float
    batch: Batch = 0
    step: Step = 0


class LimitReached(Event, frozen=True, kw_only=True):
    """The training ended by a limit. The last checkpoint follows, then RunCompleted."""

    limit: Limit
    step: Step
    epoch: Epoch


class EndTraining(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: make no further update, and report that training has ended.

    At an epoch's end: after its validation.
    """


class Continue(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: the end of epoch `epoch`, or its validation after `batch` batches, is recorded; go on."""

    epoch: Epoch
    batch: Batch = 0
