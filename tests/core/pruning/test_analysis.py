"""The answers that an analysis may give, and those that are refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.supervisor.analysts import LIES, honest, without_file
from tolariad.core.calc.pruning.analysis import (
    UNITS_BYTES_MAX,
    AnalysedGroup,
    AnalysisRequest,
    choice_of,
    chosen_units,
    refusal_of,
    smallest_units,
)
from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.core.calc.pruning.cost import Cut
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.verdict import PruningDecision
from tolariad.core.calc.settings.pruning import Prune

PRUNE = Prune()
REQUEST = AnalysisRequest(
    cycle=4,
    checkpoint="c000003",
    manifest="ab" * 32,
    epoch=2,
    phase=PruningPhase.ACTIVE_PRUNING,
    share=0.05,
    cap=0.2,
    pruned=20,
    pruned_channels=2,
    masked={"conv": (8, 9)},
    avoid={"conv": (50,)},
)
WHY = {
    "another checkpoint": "it is about checkpoint c000099, but c000003 was asked",
    "another cycle": "it answers cycle 77, but 4 was asked",
    "an unknown group": "it names the unknown group dense",
    "a unit out of range": "conv has no unit 200 that is not masked",
    "a masked unit": "conv has no unit 8 that is not masked",
    "a rejected unit": "unit 50 of conv was rejected before",
    "unordered units": "the units of conv do not ascend",
    "a score that is NaN": "a score of conv is nan",
    "too few scores": "conv has 2 units, but 1 scores",
    "a correlation that is NaN": "its correlation is nan",
    "an accuracy that is NaN": "it is NO_GO",
    "a hidden drop": "it says GO, but by what it measured it is NO_GO",
    "more than the budget": "it takes 200 parameters; the budget is 110",
    "fewer parameters than its units have": "it says that its units have 10 parameters; they have 20",
    "parameters that are not there": "the parameters of conv are impossible: there is no dimension 0 of parameter 0",
    "more parameters in its groups than in the model": "its groups lie in 2000 parameters, but the model has 1999",
    "no hash": "its masks_sha256 is no SHA-256",
    "a narrower group": "it says that conv has 5 units, but unit 9 is masked already",
    "no groups, but units": "it names the unknown group conv",
    "a doubt without a reason": "CONDITIONAL_GO without a reason",
}


def test_the_honest_answer_is_accepted():
    """So the refusals below have their own reasons."""
    assert refusal_of(REQUEST, honest(REQUEST), PRUNE) == ""


@pytest.mark.parametrize("lie", WHY)
def test_an_impossible_answer_is_refused_with_its_reason(lie):
    """Shapes, groups, indices, budget, numbers, and a decision that its measurements contradict."""
    assert WHY[lie] in refusal_of(REQUEST, LIES[lie](REQUEST), PRUNE)


def test_every_lie_has_a_reason():
    """Only the missing file needs a file system."""
    assert WHY.keys() == {name for name, act in LIES.items() if act is not without_file}


def test_a_group_that_was_pruned_may_be_none_any_more():
    """As one that a new seed is blended with: then nothing of it is chosen, and what is pruned still counts."""
    answer = replace(honest(REQUEST), groups=(), shapes=(), units={}, scores={}, parameters_masked=0)

    assert refusal_of(REQUEST, answer, PRUNE) == ""


def test_a_plan_that_is_too_large_for_an_event_is_refused():
    """It is part of events, as the units are."""
    answer = replace(honest(REQUEST), plan="x" * (UNITS_BYTES_MAX + 1))

    assert f"more than {UNITS_BYTES_MAX} bytes" in refusal_of(REQUEST, answer, PRUNE)


def test_a_conditional_answer_may_take_half_of_the_budget():
    """A twentieth of 2 200 parameters is 110, so 55: five units of ten."""
    answer = replace(honest(REQUEST), decision=PruningDecision.CONDITIONAL_GO, reasons=("A doubt.",))

    def refusal(count):
        units = {"conv": tuple(range(10, 10 + count))}
        taken = replace(answer, units=units, scores={"conv": (0.1,) * count}, parameters_masked=10 * count)
        return refusal_of(REQUEST, taken, PRUNE)

    assert refusal(5) == ""
    assert refusal(6) == "it takes 60 parameters; the budget is 55"


def test_removed_parameters_are_a_part_of_the_model_before_any_pruning():
    """The budget does not shrink with the model: a twentieth of 2 200 and of 800 that compactions took."""
    request = replace(REQUEST, taken=800, pruned=820)
    answer = honest(request)
    choice = choice_of(answer.groups, answer.shapes, answer.parameters, request)

    # The cap is a fifth of 3 000, and more is pruned.
    assert (choice.total, choice.allowed) == (3_000, 0)
    assert choice_of(answer.groups, answer.shapes, answer.parameters, replace(request, cap=0.9)).allowed == 150


def test_masks_that_have_grown_with_their_model_count_as_they_are():
    """The journal says what they covered when they were applied: here a tenth of it."""
    answer = honest(REQUEST)
    wide = replace(REQUEST, cap=0.05, masked={"conv": tuple(range(10))}, pruned=10)

    assert choice_of(answer.groups, answer.shapes, answer.parameters, wide).allowed == 110 - 100


def test_the_smallest_units_are_taken_first():
    """Of two layers; the third is at its floor. The second channel of `a` costs less: a column of it is gone."""
    groups = (
        AnalysedGroup(name="a", kind=UnitKind.CHANNEL, width=40, channels=1, cuts=(Cut(0, 0, (1,)),)),
        AnalysedGroup(name="b", kind=UnitKind.CHANNEL, width=40, channels=1, cuts=(Cut(1, 0, (1,)), Cut(0, 1, (1,)))),
        AnalysedGroup(name="c", kind=UnitKind.CHANNEL, width=16, channels=1, cuts=(Cut(2, 0, (1,)),)),
    )
    shapes = ((40, 40), (40, 70), (16, 2))
    request = replace(REQUEST, share=0.03, pruned=0, masked={}, avoid={})
    choice = choice_of(groups, shapes, 5_000, request)

    assert choice.allowed == 150
    assert smallest_units(choice, PRUNE) == {"a": (0, 1, 2)}
    assert smallest_units(replace(choice, allowed=39), PRUNE) == {}


@st.composite
def asked(draw):
    """Groups, a request that fits them, and scores."""
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    groups, shapes, masked, removed, avoid, scores = [], [], {}, {}, {}, {}
    for at, name in enumerate(names):
        width = draw(st.integers(1, 80))
        kind, channels = draw(st.sampled_from([(UnitKind.CHANNEL, 1), (UnitKind.CHANNEL, 4), (UnitKind.HEAD, 8)]))
        # The columns of each parameter are the units of the group before.
        shapes.append((width * channels, shapes[-1][0] if shapes else 3))
        if groups:
            former = groups[-1]
            groups[-1] = replace(former, cuts=(*former.cuts, Cut(at, 1, (former.channels,))))
        cuts = (Cut(at, 0, (channels,)),)
        groups.append(AnalysedGroup(name=name, kind=kind, width=width, channels=channels, cuts=cuts))
        units = st.sets(st.integers(0, width - 1), min_size=1, max_size=width).map(lambda one: tuple(sorted(one)))
        for held in (masked, avoid):
            if draw(st.booleans()):
                held[name] = draw(units)
        if draw(st.booleans()):
            removed[name] = draw(st.integers(1, 40))
        scores[name] = draw(st.lists(st.floats(-1, 1), min_size=width, max_size=width))
    taken = draw(st.integers(0, 5_000))
    shares = st.floats(0, 1)
    request = replace(
        REQUEST,
        share=draw(shares),
        cap=draw(shares),
        pruned=taken + draw(st.integers(0, 1_000)),
        taken=taken,
        masked=masked,
        removed=removed,
        avoid=avoid,
    )
    return request, tuple(groups), tuple(shapes), scores


@given(asked())
def test_what_is_chosen_is_what_may_be_answered(given):
    """The worker's choice passes the daemon's checks, whatever is masked, removed or rejected already."""
    request, groups, shapes, scores = given
    parameters = sum(map(math.prod, shapes)) + 100
    choice = choice_of(groups, shapes, parameters, request)
    units = chosen_units(choice, scores, choice.allowed, request.avoid, PRUNE)
    chosen = {name: tuple(scores[name][unit] for unit in ones) for name, ones in units.items()}
    answer = replace(
        honest(request),
        groups=groups,
        shapes=shapes,
        parameters=parameters,
        parameters_masked=choice.parameters_of(units),
        units=units,
        scores=chosen,
    )

    assert refusal_of(request, answer, PRUNE) == ""
    assert answer.parameters_masked <= request.share * choice.total
    assert not units or answer.parameters_masked + request.pruned <= request.cap * choice.total
