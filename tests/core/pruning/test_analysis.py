"""The answers that an analysis may give, and those that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.supervisor.analysts import LIES, honest, without_file
from tolariad.core.pruning.analysis import (
    UNITS_BYTES_MAX,
    AnalysedGroup,
    AnalysisRequest,
    channels_for,
    chosen_units,
    layers_of,
    refusal_of,
)
from tolariad.core.pruning.budget import UnitKind
from tolariad.core.pruning.phase import PruningPhase
from tolariad.core.pruning.verdict import PruningDecision
from tolariad.core.settings.pruning import Prune

PRUNE = Prune()
REQUEST = AnalysisRequest(
    cycle=4,
    checkpoint="c000003",
    manifest="ab" * 32,
    epoch=2,
    phase=PruningPhase.ACTIVE_PRUNING,
    share=0.05,
    cap=0.2,
    pruned=2,
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
    "more than the budget": "it takes 20 channels; the budget is 10",
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
    answer = replace(honest(REQUEST), groups=(), units={}, scores={})

    assert refusal_of(REQUEST, answer, PRUNE) == ""


def test_a_plan_that_is_too_large_for_an_event_is_refused():
    """It is part of events, as the units are."""
    answer = replace(honest(REQUEST), plan="x" * (UNITS_BYTES_MAX + 1))

    assert f"more than {UNITS_BYTES_MAX} bytes" in refusal_of(REQUEST, answer, PRUNE)


def test_a_conditional_answer_may_take_half_of_the_budget():
    """Ten channels are allowed, so five."""
    answer = replace(honest(REQUEST), decision=PruningDecision.CONDITIONAL_GO, reasons=("A doubt.",))
    five, six = ({"conv": tuple(range(10, 10 + n))} for n in (5, 6))

    assert refusal_of(REQUEST, replace(answer, units=five, scores={"conv": (0.1,) * 5}), PRUNE) == ""
    assert refusal_of(REQUEST, replace(answer, units=six, scores={"conv": (0.1,) * 6}), PRUNE) == (
        "it takes 6 channels; the budget is 5"
    )


@st.composite
def asked(draw):
    """Groups, a request that fits them, and scores."""
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    groups, masked, removed, avoid, scores = [], {}, {}, {}, {}
    for name in names:
        width = draw(st.integers(1, 80))
        kind, channels = draw(st.sampled_from([(UnitKind.CHANNEL, 1), (UnitKind.CHANNEL, 4), (UnitKind.HEAD, 8)]))
        groups.append(AnalysedGroup(name=name, kind=kind, width=width, channels=channels))
        units = st.sets(st.integers(0, width - 1), min_size=1, max_size=width).map(lambda one: tuple(sorted(one)))
        for held in (masked, avoid):
            if draw(st.booleans()):
                held[name] = draw(units)
        if draw(st.booleans()):
            removed[name] = draw(st.integers(1, 40))
        scores[name] = draw(st.lists(st.floats(-1, 1), min_size=width, max_size=width))
    pruned = sum((len(masked.get(g.name, ())) + removed.get(g.name, 0)) * g.channels for g in groups)
    shares = st.floats(0, 1)
    request = replace(
        REQUEST, share=draw(shares), cap=draw(shares), pruned=pruned, masked=masked, removed=removed, avoid=avoid
    )
    return request, tuple(groups), scores


@given(asked())
def test_what_is_chosen_is_what_may_be_answered(given):
    """The worker's choice passes the daemon's checks, whatever is masked, removed or rejected already."""
    request, groups, scores = given
    layers = layers_of(groups, request)
    units = chosen_units(layers, scores, channels_for(layers, request), request.avoid, PRUNE)
    chosen = {name: tuple(scores[name][unit] for unit in ones) for name, ones in units.items()}
    answer = replace(honest(request), groups=groups, units=units, scores=chosen)

    assert refusal_of(request, answer, PRUNE) == ""
