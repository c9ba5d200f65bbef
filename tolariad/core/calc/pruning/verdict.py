"""The judgement of masks: before they are applied, on a copy of the model, and in the safety window after it.

Promises: pure functions of what was measured. A number that is not finite never passes. Every decision but GO has its
reasons, as sentences. A difference within the margin of repeated validations is no reason.
"""

import math
from collections.abc import Iterator, Mapping
from enum import Enum, IntEnum
from typing import Final, Protocol

from msgspec import Struct

from tolariad.core.calc.settings.pruning import Prune, PruneSafety

# The metric of tasks that have it. Others are judged by a loss (`accuracy_by_loss`).
ACCURACY: Final = "accuracy"


class PruningDecision(IntEnum):
    """Whether masks may be applied. The numbers are Leyline's.

    CONDITIONAL_GO: half the budget, and the safety window is twice as long.
    """

    GO = 1
    NO_GO = 2
    CONDITIONAL_GO = 3


class MaskMeasure(Struct, frozen=True, kw_only=True):
    """The measurements of the validation on a copy.

    * `accuracy`, `gradient_norm`: those of the masked copy; `..._before` are those of the model as it is.
    * `layer_share`: the greatest share of a layer that is pruned.
    * `spread`: the spread of the accuracy in repeated validations of one model.
    * `samples`: how many held-out samples were evaluated; 0: not known.
    * `structure`: the fault in the masks themselves, as a clause; "" if there is none.
    * `without_gradient`: the names of live parameters that got no gradient.
    * `memory`: the share of the memory that is in use; None: not measured, or the masks are not the cause.
    * `loss_before`: the loss of the model as it is, if the task has no accuracy. The accuracies stand for it then
      (`accuracy_by_loss`).
    """

    accuracy_before: float
    accuracy: float
    gradient_norm_before: float
    gradient_norm: float
    layer_share: float
    spread: float = 0.0
    samples: int = 0
    structure: str = ""
    without_gradient: tuple[str, ...] = ()
    memory: float | None = None
    loss_before: float | None = None


class MaskVerdict(Struct, frozen=True, kw_only=True):
    """The decision, and why it is not GO."""

    decision: PruningDecision
    reasons: tuple[str, ...] = ()


class AccuracyLimits(Protocol):
    """How much accuracy may be lost: `PruneSafety`, or the daemon's part of it."""

    @property
    def accuracy_drop(self) -> float:
        """Return the absolute drop that is always allowed."""

    @property
    def spread_factor(self) -> float:
        """Return how many times the spread of repeated validations is allowed, if that is more."""


# So many samples may always change sides: on 25 samples one alone is 4 %.
SAMPLES_LEAST: Final = 1.5


def accuracy_margin(limits: AccuracyLimits, spread: float, samples: int = 0) -> float:
    """Return the drop of accuracy that is allowed, absolute.

    `spread`: the spread of the accuracy in repeated validations of one model. `samples`: how many the validation has;
    0: not known.
    """
    return max(limits.accuracy_drop, limits.spread_factor * spread, SAMPLES_LEAST / samples if samples else 0.0)


def accuracy_by_loss(loss: float, before: float) -> float:
    """Return what stands for the accuracy of a task without one: 1 - the relative rise of its loss."""
    return 1.0 - (loss - before) / loss_scale(before)


def loss_by_accuracy(accuracy: float, before: float) -> float:
    """Return the loss for which `accuracy_by_loss` gave this."""
    return before + (1.0 - accuracy) * loss_scale(before)


def loss_scale(before: float) -> float:
    """Return what a difference of losses is relative to."""
    return abs(before) or 1.0


def accuracy_of(metrics: Mapping[str, float], loss_before: float | None) -> float | None:
    """Return the accuracy in the metrics of a validation, or, if a loss is given, that by this loss. None: unknown."""
    if loss_before is None:
        return metrics.get(ACCURACY)
    loss = metrics.get("loss")
    return None if loss is None else accuracy_by_loss(loss, loss_before)


def accuracy_limit(prune: Prune, before: float, spread: float, samples: int = 0) -> float:
    """Return the drop of accuracy above which masks are refused, absolute. `before`: the accuracy without them."""
    return max((1.0 - prune.validation.accuracy_retention) * before, accuracy_margin(prune.safety, spread, samples))


def in_words(drop: float, metric: str) -> str:
    """Return a drop of the accuracy as a clause; by another metric it is the relative rise of a loss."""
    return f"the accuracy falls by {drop:.4f}" if metric == ACCURACY else f"the loss rises by {drop:.4f} of what it is"


def _begun(clause: str) -> str:
    """Return the clause as the beginning of a sentence."""
    return f"{clause[0].upper()}{clause[1:]}"


def judge(measured: MaskMeasure, prune: Prune, metric: str = ACCURACY) -> MaskVerdict:
    """Return the verdict on masks. One reason against them is enough for NO_GO. `metric`: what was measured."""
    against = tuple(_against(measured, prune, metric))
    if against:
        return MaskVerdict(decision=PruningDecision.NO_GO, reasons=against)
    doubts = tuple(_doubts(measured, prune, metric))
    return MaskVerdict(decision=PruningDecision.CONDITIONAL_GO if doubts else PruningDecision.GO, reasons=doubts)


def _against(measured: MaskMeasure, prune: Prune, metric: str) -> Iterator[str]:
    limits = prune.validation
    if measured.structure:
        yield f"The masks do not fit the model: {measured.structure}."
    if measured.without_gradient:
        yield f"No gradient reaches {measured.without_gradient[0]} any more."
    numbers = (measured.accuracy, measured.accuracy_before, measured.gradient_norm, measured.gradient_norm_before)
    if not all(math.isfinite(number) for number in (*numbers, measured.spread, measured.layer_share)):
        yield "A measured number is not finite."
        return
    if measured.layer_share > limits.layer_share:
        yield f"A layer would lose {measured.layer_share:.0%} of its channels; at most {limits.layer_share:.0%} may go."
    drop = measured.accuracy_before - measured.accuracy
    most = accuracy_limit(prune, measured.accuracy_before, measured.spread, measured.samples)
    if drop > most:
        yield f"{_begun(in_words(drop, metric))}; at most {most:.4f} are allowed."
    ratio = _ratio(measured.gradient_norm, measured.gradient_norm_before)
    if ratio > limits.gradient_ratio:
        yield f"The gradient norm grows {ratio:.3g} times; at most {limits.gradient_ratio:g} times are allowed."
    if measured.memory is not None and not measured.memory <= prune.safety.memory:
        yield f"{measured.memory:.0%} of the memory are in use; the limit is {prune.safety.memory:.0%}."


def _doubts(measured: MaskMeasure, prune: Prune, metric: str) -> Iterator[str]:
    drop, margin = measured.accuracy_before - measured.accuracy, _margin(measured, prune.safety)
    if drop > margin:
        yield f"{_begun(in_words(drop, metric))}, more than {margin:.4f}."
    ratio = _ratio(measured.gradient_norm, measured.gradient_norm_before)
    if ratio > prune.safety.gradient_norm:
        yield f"The gradient norm grows {ratio:.3g} times, more than {prune.safety.gradient_norm:g} times."


class WindowMeasure(Struct, frozen=True, kw_only=True):
    """The measurements in the safety window, and before the masks (`_before`). None: not measured yet.

    Gradient norms and seconds of a step are medians. `memory`: the share of the memory that is in use.
    """

    accuracy_before: float | None = None
    accuracy: float | None = None
    spread: float = 0.0
    gradient_norm_before: float | None = None
    gradient_norm: float | None = None
    step_s_before: float | None = None
    step_s: float | None = None
    memory: float | None = None


class WindowAction(Enum):
    """The consequence of a limit that was exceeded.

    Release: the masks are lifted at the next boundary, and weights stay. Rollback: to the checkpoint before the masks.
    """

    RELEASE = "release"
    ROLLBACK = "rollback"


class Trip(Struct, frozen=True, kw_only=True):
    """A limit that was exceeded: its name in the sources, the limit, the measured value, and what follows."""

    threshold: str
    limit: float
    measured: float
    action: WindowAction


def accuracy_trip(
    limits: AccuracyLimits, spread: float, before: float, accuracy: float, samples: int = 0
) -> Trip | None:
    """Return the limit that this accuracy exceeds in the safety window, or None.

    `before`: the accuracy before the masks. `samples`: as for `accuracy_margin`.
    """
    limit, drop = accuracy_margin(limits, spread, samples), before - accuracy
    # Negated: an accuracy that is not a number exceeds every limit.
    if not drop <= limit:  # safety: accuracy-that-is-no-number-rejects
        return Trip(threshold="accuracy_drop_threshold", limit=limit, measured=drop, action=WindowAction.ROLLBACK)
    return None


def trips(measured: WindowMeasure, safety: PruneSafety) -> tuple[Trip, ...]:
    """Return the limits that were exceeded in the safety window."""
    found = []

    def compare(threshold: str, value: float, limit: float, action: WindowAction) -> None:
        # Negated: a NaN exceeds every limit.
        if not value <= limit:
            found.append(Trip(threshold=threshold, limit=limit, measured=value, action=action))

    if measured.accuracy is not None and measured.accuracy_before is not None:
        worse = accuracy_trip(safety, measured.spread, measured.accuracy_before, measured.accuracy)
        found += [worse] if worse is not None else []
    if measured.gradient_norm is not None and measured.gradient_norm_before is not None:
        ratio = _ratio(measured.gradient_norm, measured.gradient_norm_before)
        compare("gradient_norm_threshold", ratio, safety.gradient_norm, WindowAction.ROLLBACK)
    if measured.memory is not None:
        compare("memory_usage_threshold", measured.memory, safety.memory, WindowAction(safety.memory_action))
    if measured.step_s is not None and measured.step_s_before is not None:
        speed = _ratio(measured.step_s_before, measured.step_s)
        if not speed >= safety.speed:
            action = WindowAction(safety.speed_action)
            found.append(Trip(threshold="training_speed_threshold", limit=safety.speed, measured=speed, action=action))
    return tuple(found)


def _margin(measured: MaskMeasure, safety: PruneSafety) -> float:
    return accuracy_margin(safety, measured.spread, measured.samples)


def _ratio(after: float, before: float) -> float:
    if before == 0.0:
        return 1.0 if after == 0.0 else math.inf
    return after / before
