"""The main test: killed anywhere, any number of times, a run ends with the bits of an undisturbed run."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaign.campaign import PARENT, Disturbance, Outcome
from tests.campaign.forks import Template
from tests.campaign.plans import ALL_POINTS, Plan, as_user_every, deal, deal_few
from tests.campaign.variants import EPOCHS, MANY_RUNS, VARIANTS, Variant, variants_for
from tolariad.trainer.checkpoints.files import MODEL_FILE

PARALLEL = 4
# Runs of a campaign in the ordinary suite, each of another variant; the seed draws variants and kills.
SHORT = 5
# Enough for each variant, and for two kills at each point.
COMPLETE = 16


@pytest.mark.parametrize("runs", [SHORT, *(pytest.param(runs, marks=pytest.mark.torture) for runs in (COMPLETE, 500))])
def test_killed_runs_end_with_the_bits_of_the_run_that_was_never_killed(tmp_path, template, seed, runs):
    """Parameters, optimizer, random state, metrics and digest are equal. No acknowledged event is lost.

    Every planned kill happens.
    """
    runs = int(os.environ.get("TOLARIA_CAMPAIGN_RUNS", runs))
    is_complete = runs >= COMPLETE
    plans = deal(seed, runs) if is_complete else deal_few(seed, runs)
    (tmp_path / PARENT).mkdir()
    first = Plan(0, VARIANTS["plain"], as_user=runs >= MANY_RUNS)
    plain = Disturbance(tmp_path / PARENT, first, template).carry_out()
    variants = list({plan.variant.name: plan.variant for plan in plans if plan.variant.name != "plain"}.values())
    calm_plans = [Plan(number, variant) for number, variant in enumerate(variants)]
    calm = carry_out_all(tmp_path / "calm", calm_plans, template)
    outcomes = carry_out_all(tmp_path / "killed", plans, template)

    show(plans, outcomes)
    undisturbed = {"plain": plain, **dict(zip((one.name for one in variants), calm, strict=True))}
    # The values that are compared hold all of it.
    for one in undisturbed.values():
        assert {"model", "optimizer", "state"} <= {name[: name.find("-")] for name in one.pieces}, one
        assert one.metrics, one
        assert one.line, one
    # To go back and on, by either tier, is to go on: the same bits as without it.
    gone_back = [name for name in undisturbed if name.startswith("gone back")]
    assert all(undisturbed[name].rollbacks for name in gone_back)
    assert all(undisturbed[name].pieces == plain.pieces for name in gone_back)
    for child in (one for name, one in undisturbed.items() if name == "child"):
        assert child.pieces[MODEL_FILE] not in plain.pieces.values()
    for plan, outcome in zip(plans, outcomes, strict=True):
        expected = undisturbed[plan.variant.name]
        assert outcome.pieces == expected.pieces, plan
        assert outcome.metrics == expected.metrics, plan
        assert outcome.line == expected.line, plan
        # The digests are of all that happened; how much was done of what was then gone back from may differ.
        goes_back = any(map(plan.variant.goes_back_after, range(EPOCHS)))
        assert goes_back or (outcome.digest, outcome.orders) == (expected.digest, expected.orders), plan
        assert outcome.rollbacks == expected.rollbacks, plan
        assert outcome.lost == 0, plan
        assert 2 <= outcome.fired.total() == len(plan.kills) <= 4, plan
    if not is_complete:
        return
    assert len(gone_back) == 2
    assert "child" in undisturbed
    assert sum(plan.as_user for plan in plans) * as_user_every(runs) >= len(plans)
    fired = count(outcomes)
    assert all(fired[point] >= 2 for point in ALL_POINTS), fired
    assert min(sum(getattr(outcome, name) for outcome in outcomes) for name in ("reruns", "pauses", "checkpoints")) > 0


def test_every_deal_has_each_point_twice_and_room_for_each_kill(seed):
    """For every seed: 2 to 4 kills in a run, every point and variant used, and no kill that cannot happen any more."""
    for number in range(40):
        plans = deal(seed + number, COMPLETE)
        dealt = Counter(kill.point for plan in plans for kill in plan.kills)

        assert all(2 <= len(plan.kills) <= plan.variant.kills for plan in plans)
        assert all(dealt[point] >= 2 for point in ALL_POINTS), dealt
        assert {plan.variant.name for plan in plans} == {variant.name for variant in variants_for(COMPLETE)}
        assert deal(seed + number, COMPLETE) == plans


def test_a_long_campaign_has_the_variants_that_take_long(seed):
    """They include compiled runs and every way to start from another run."""
    assert {plan.variant.name for plan in deal(seed, 300)} == set(VARIANTS)
    assert sum(variant.is_long for variant in VARIANTS.values()) == 2


def test_a_short_campaign_lacks_nothing_but_what_takes_long():
    """A variant that it leaves out differs from a plain run in settings, memory or orders of a variant that it has."""
    short = variants_for(COMPLETE)
    left_out = [one for one in VARIANTS.values() if one.in_another]

    assert len(left_out) > 5
    assert len(short) + len(left_out) + 2 == len(VARIANTS)
    for one in left_out:
        alike = [other for other in short if (other.in_memory, other.orders) == (one.in_memory, one.orders)]
        assert any(keys(other) >= keys(one) for other in alike), one


def keys(variant: Variant) -> set[str]:
    """Return the keys of the configuration that the variant sets."""
    return {line.partition(":")[0].strip() for line in variant.config.splitlines()}


def test_variants_differ(tmp_path):
    """Each variant trains differently from the others; otherwise it would test nothing."""
    described = [replace(variant, name="") for variant in VARIANTS.values()]
    assert len(set(described)) == len(described)


def count(outcomes: list[Outcome]) -> Counter[str]:
    """Print how often each point ended a process."""
    return sum((outcome.fired for outcome in outcomes), Counter())


def carry_out_all(folder: Path, plans: list[Plan], template: Template) -> list[Outcome]:
    def carry_out(plan: Plan) -> Outcome:
        # Short: the path of a socket has 107 bytes.
        own = folder / f"{'run' if plan.kills else 'calm'}{plan.seed % 10_000}"
        own.mkdir(parents=True)
        return Disturbance(own, plan, template).carry_out()

    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(carry_out, plans))


def show(plans: list[Plan], outcomes: list[Outcome]) -> None:
    fired = count(outcomes)
    print(
        f"\n{len(outcomes)} runs ({sum(plan.as_user for plan in plans)} as a user starts one), {fired.total()} kills:"
    )
    for point in ALL_POINTS:
        print(f"  {point:16} {fired[point]:4}")
    for name, number in sorted(Counter(plan.variant.name for plan in plans).items()):
        print(f"  runs: {name:16} {number:4}")
    print(f"  acknowledged orders {sum(o.acknowledged for o in outcomes)}, lost {sum(o.lost for o in outcomes)}")
    print(f"  pauses {sum(o.pauses for o in outcomes)}, ordered checkpoints {sum(o.checkpoints for o in outcomes)}")
    print(f"  rollbacks {sum(o.rollbacks for o in outcomes)}, by the next start {sum(o.by_start for o in outcomes)}")
    print(f"  steps run again {sum(o.reruns for o in outcomes)}")
