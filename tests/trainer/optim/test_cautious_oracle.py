"""Cautious AdamW compared with timm's, and the proof that the scenarios detect wrong variants."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.optim.oracle import timm_adamw
from tests.trainer.optim.scenarios import BETAS, DECAY, LR, MUTANTS, SCENARIOS, Written, trajectory
from tolariad.trainer.optim import CautiousAdamW


def ours(**options):
    return lambda parameters, eps: CautiousAdamW(parameters, lr=LR, betas=BETAS, eps=eps, weight_decay=DECAY, **options)


def timms(parameters, eps):
    oracle = timm_adamw()(parameters, lr=LR, betas=BETAS, eps=eps, weight_decay=DECAY, caution=True, foreach=False)
    # timm counts steps in float32 as well, but takes its bias corrections in Python floats, as ours does.
    assert oracle.defaults["caution"] is True
    return oracle


@pytest.mark.sample(3)
@pytest.mark.parametrize("foreach", [False, True, None])
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_it_is_timms_over_two_hundred_steps(name, foreach, seed):
    """Dense, sparse rows, one hot, tiny, interrupted, large epsilon: within 1e-12 in float64, at every step."""
    theirs = trajectory(SCENARIOS[name], seed, timms, steps=200)
    mine = trajectory(SCENARIOS[name], seed, ours(foreach=foreach), steps=200)

    assert torch.isfinite(theirs).all()
    assert (mine - theirs).abs().max().item() <= 1e-12 * max(1.0, theirs.abs().max().item())


def test_every_wrong_variant_shows_in_sparse_rows_or_one_hot(seed):
    """Each of the seventeen mistakes differs by more than 1e-9; the correct one by less than 1e-12."""
    told = dict.fromkeys(("", *MUTANTS), 0.0)
    for name in ("B sparse rows", "E one hot"):
        right = trajectory(SCENARIOS[name], seed, ours())
        for mutant in told:
            wrong = trajectory(SCENARIOS[name], seed, lambda p, eps, m=mutant: Written(p, eps, m))
            told[mutant] = max(told[mutant], (wrong - right).abs().max().item())

    assert told.pop("") <= 1e-12
    assert len(told) == 17
    survivors = [mutant for mutant, distance in told.items() if not distance > 1e-9]
    assert survivors == []


def test_large_epsilon_shows_a_misplaced_one(seed):
    """Scenario F moves both epsilon variants far beyond what a float32 count of steps could do."""
    right = trajectory(SCENARIOS["F large eps"], seed, ours())
    for mutant in ("eps before the correction of v", "eps inside the root"):
        wrong = trajectory(SCENARIOS["F large eps"], seed, lambda p, eps, m=mutant: Written(p, eps, m))
        assert (wrong - right).abs().max().item() > 1e-6
