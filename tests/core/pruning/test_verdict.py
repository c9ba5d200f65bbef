"""The judgement of masks, before and after they are applied."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.calc.pruning.verdict import MaskMeasure, PruningDecision, WindowAction, WindowMeasure, judge, trips
from tolariad.core.calc.settings.pruning import Prune, PruneSafety

PRUNE = Prune()
HEALTHY = MaskMeasure(
    accuracy_before=0.95, accuracy=0.945, gradient_norm_before=1.0, gradient_norm=1.4, layer_share=0.2
)


@pytest.mark.parametrize(
    ("changes", "decision", "reason"),
    [
        ({}, PruningDecision.GO, ""),
        ({"accuracy": 0.99}, PruningDecision.GO, ""),
        ({"accuracy": 0.92}, PruningDecision.CONDITIONAL_GO, "The accuracy falls by 0.0300, more than 0.0200."),
        ({"accuracy": 0.92, "spread": 0.02}, PruningDecision.GO, ""),
        ({"accuracy": 0.90}, PruningDecision.NO_GO, "The accuracy falls by 0.0500; at most 0.0475 are allowed."),
        ({"accuracy": 0.90, "spread": 0.02}, PruningDecision.GO, ""),
        ({"gradient_norm": 6.0}, PruningDecision.CONDITIONAL_GO, "The gradient norm grows 6 times, more than 5 times."),
        ({"gradient_norm": 11.0}, PruningDecision.NO_GO, "The gradient norm grows 11 times"),
        ({"layer_share": 0.6}, PruningDecision.NO_GO, "A layer would lose 60% of its channels; at most 50% may go."),
        ({"memory": 0.95}, PruningDecision.NO_GO, "95% of the memory are in use; the limit is 90%."),
        ({"memory": 0.5}, PruningDecision.GO, ""),
        ({"structure": "a.weight has 4 channels, not 3"}, PruningDecision.NO_GO, "a.weight has 4 channels, not 3"),
        ({"without_gradient": ("a.weight",)}, PruningDecision.NO_GO, "No gradient reaches a.weight any more."),
    ],
)
def test_masks_are_judged_with_reasons(changes, decision, reason):
    """One row for each limit: within it, beyond the first one, beyond the second."""
    verdict = judge(msgspec.structs.replace(HEALTHY, **changes), PRUNE)

    assert verdict.decision is decision
    assert (not verdict.reasons) is (decision is PruningDecision.GO)
    assert reason in " ".join(verdict.reasons)


@pytest.mark.parametrize(
    ("accuracy", "reason"),
    [
        (0.97, "The loss rises by 0.0300 of what it is, more than 0.0200."),
        (0.9, "The loss rises by 0.1000 of what it is; at most 0.0500 are allowed."),
    ],
)
def test_of_a_task_without_accuracy_the_reason_is_its_loss(accuracy, reason):
    """Its accuracy is 1 - the relative rise of the loss, of which nobody has heard."""
    measured = msgspec.structs.replace(HEALTHY, accuracy_before=1.0, accuracy=accuracy)

    assert judge(measured, PRUNE, "loss").reasons == (reason,)


@pytest.mark.parametrize(
    "field", ["accuracy_before", "accuracy", "gradient_norm_before", "gradient_norm", "spread", "layer_share", "memory"]
)
def test_a_number_that_is_not_finite_never_passes(field):
    """This holds for any of the measurements."""
    verdict = judge(msgspec.structs.replace(HEALTHY, **{field: math.nan}), PRUNE)

    assert verdict.decision is PruningDecision.NO_GO
    assert verdict.reasons


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.2))
def test_a_lower_accuracy_is_never_judged_better(before, one, other, spread):
    """GO, CONDITIONAL_GO, NO_GO, in this order."""
    order = [PruningDecision.GO, PruningDecision.CONDITIONAL_GO, PruningDecision.NO_GO]
    low, high = (
        judge(msgspec.structs.replace(HEALTHY, accuracy_before=before, accuracy=value, spread=spread), PRUNE)
        for value in sorted((one, other))
    )

    assert order.index(low.decision) >= order.index(high.decision)


SAFETY = PruneSafety()
QUIET = WindowMeasure(
    accuracy_before=0.9,
    accuracy=0.89,
    gradient_norm_before=1.0,
    gradient_norm=2.0,
    step_s_before=0.02,
    step_s=0.02,
    memory=0.5,
)


@pytest.mark.parametrize(
    ("changes", "threshold", "action"),
    [
        ({"accuracy": 0.87}, "accuracy_drop_threshold", WindowAction.ROLLBACK),
        ({"accuracy": math.nan}, "accuracy_drop_threshold", WindowAction.ROLLBACK),
        ({"gradient_norm": 5.1}, "gradient_norm_threshold", WindowAction.ROLLBACK),
        ({"gradient_norm": 1.0, "gradient_norm_before": 0.0}, "gradient_norm_threshold", WindowAction.ROLLBACK),
        ({"memory": 0.91}, "memory_usage_threshold", WindowAction.RELEASE),
        ({"step_s": 0.023}, "training_speed_threshold", WindowAction.RELEASE),
        ({"step_s": math.nan}, "training_speed_threshold", WindowAction.RELEASE),
    ],
)
def test_a_limit_that_is_exceeded_trips(changes, threshold, action):
    """Accuracy and gradient norm lead back; memory and speed lift the masks, so that no weight is lost."""
    (trip,) = trips(msgspec.structs.replace(QUIET, **changes), SAFETY)

    assert (trip.threshold, trip.action) == (threshold, action)


@pytest.mark.parametrize(
    "changes",
    [{}, {"accuracy": 0.85, "spread": 0.02}, {"accuracy": None, "gradient_norm": None, "step_s": None, "memory": None}],
)
def test_what_is_within_its_limit_or_unmeasured_does_not_trip(changes):
    """A drop within three times the spread of repeated validations is none."""
    assert trips(msgspec.structs.replace(QUIET, **changes), SAFETY) == ()


def test_the_action_of_speed_and_memory_can_be_the_sources():
    """`prune.safety.memory_action: rollback`, and the same for speed."""
    safety = PruneSafety(memory_action="rollback", speed_action="rollback")
    found = trips(msgspec.structs.replace(QUIET, memory=0.99, step_s=0.04), safety)

    assert [trip.action for trip in found] == [WindowAction.ROLLBACK, WindowAction.ROLLBACK]
