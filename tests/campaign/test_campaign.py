"""The test of the whole: killed anywhere, any number of times, a run ends with the bits of the run that was not killed."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.campaign.campaign import BY_TIME, Disturbance, Outcome, Plan, deal
from tolariad.failpoints import POINTS

PARALLEL = 3


@pytest.mark.parametrize(
    "runs",
    [
        25,
        pytest.param(300, marks=pytest.mark.torture),
    ],
)
def test_killed_runs_end_with_the_bits_of_the_run_that_was_never_killed(tmp_path, seed, runs):
    """Parameters, optimizer, random state, metrics and digest equal; nothing acknowledged is lost; every point is hit."""
    calm = carry_out(tmp_path, Plan(0, [], 0))
    plans = deal(seed, int(os.environ.get("TOLARIA_CAMPAIGN_RUNS", runs)))
    with ThreadPoolExecutor(PARALLEL) as pool:
        outcomes = list(pool.map(lambda plan: carry_out(tmp_path, plan), plans))

    fired: Counter[str] = sum((outcome.fired for outcome in outcomes), Counter())
    show(fired, outcomes)
    for plan, outcome in zip(plans, outcomes, strict=True):
        assert outcome.pieces == calm.pieces, plan
        assert outcome.metrics == calm.metrics, plan
        assert outcome.digest == calm.digest, plan
        assert outcome.lost == 0, plan
    if len(plans) >= 25:
        assert all(fired[point] >= 2 for point in (*POINTS, BY_TIME)), fired
    assert sum(outcome.reruns for outcome in outcomes) > 0


def carry_out(tmp_path, plan: Plan) -> Outcome:
    folder = tmp_path / str(plan.seed)
    folder.mkdir()
    return Disturbance(folder, plan).carry_out()


def show(fired: Counter[str], outcomes: list[Outcome]) -> None:
    print(f"\n{len(outcomes)} runs, {sum(fired.values())} kills:")
    for point in (*POINTS, BY_TIME):
        print(f"  {point:16} {fired[point]:4}")
    print(f"  acknowledged orders {sum(o.acknowledged for o in outcomes)}, lost {sum(o.lost for o in outcomes)}")
    print(f"  pauses {sum(o.pauses for o in outcomes)}, steps run again {sum(o.reruns for o in outcomes)}, differing 0")
