"""The test of the whole: killed anywhere, any number of times, a run ends with the bits of the run that was not killed."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.campaign.campaign import BY_TIME, Disturbance, Outcome, Plan, deal, deal_again
from tolariad.failpoints import POINTS

PARALLEL = 3
ALL_POINTS = (*POINTS, BY_TIME)


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
    outcomes = carry_out_all(tmp_path, plans)
    # A drawn moment may lie behind a run's end: such points are dealt again, so that each comes at least twice.
    missing = [point for point in ALL_POINTS for _ in range(2 - count(outcomes)[point])]
    plans += (again := deal_again(seed, missing))
    outcomes += carry_out_all(tmp_path, again)

    show(outcomes)
    for plan, outcome in zip(plans, outcomes, strict=True):
        assert outcome.pieces == calm.pieces, plan
        assert outcome.metrics == calm.metrics, plan
        assert outcome.digest == calm.digest, plan
        assert outcome.lost == 0, plan
    fired = count(outcomes)
    assert all(fired[point] >= 2 for point in ALL_POINTS), fired
    assert sum(outcome.reruns for outcome in outcomes) > 0


def count(outcomes: list[Outcome]) -> Counter[str]:
    """How often each point ended a process."""
    return sum((outcome.fired for outcome in outcomes), Counter())


def carry_out_all(tmp_path, plans: list[Plan]) -> list[Outcome]:
    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(lambda plan: carry_out(tmp_path, plan), plans))


def carry_out(tmp_path, plan: Plan) -> Outcome:
    folder = tmp_path / str(plan.seed)
    folder.mkdir()
    return Disturbance(folder, plan).carry_out()


def show(outcomes: list[Outcome]) -> None:
    fired = count(outcomes)
    print(f"\n{len(outcomes)} runs, {fired.total()} kills:")
    for point in ALL_POINTS:
        print(f"  {point:16} {fired[point]:4}")
    print(f"  acknowledged orders {sum(o.acknowledged for o in outcomes)}, lost {sum(o.lost for o in outcomes)}")
    print(f"  pauses {sum(o.pauses for o in outcomes)}, steps run again {sum(o.reruns for o in outcomes)}")
