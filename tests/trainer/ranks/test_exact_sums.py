"""One hash of parameters, optimizer and losses, whatever the number of ranks."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch

from tests.trainer.ranks.cases import SEED, Case, Training, by_one_process, by_plain_ddp, by_ranks
from tests.trainer.ranks.groups import results
from tolariad.trainer.ranks.exact import ExactSum
from tolariad.trainer.ranks.exact.draws import seed_leaf


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_any_number_of_ranks_ends_with_the_bits_of_one_process_that_accumulates(model, tmp_path):
    """By tolariad's own step with `accumulate: 4`, and by one to four ranks, with dropout, clipping and AdamW.

    Plain DDP with four ranks ends with other bits, so the comparison can fail.
    """
    case = Case(model)
    expected = by_one_process(case)

    for ranks in (1, 2, 3, 4):
        found = results(tmp_path / f"{ranks}", ranks, partial(by_ranks, case))
        assert found == [expected] * ranks, f"{ranks} ranks"

    plain = results(tmp_path / "plain", 4, lambda rank, ranks, _: by_plain_ddp(case, rank, ranks))
    assert plain[0]["model"] != expected["model"]


# DDP's first iteration has one layout of buckets, later ones have another: here of many small ones.
SMALL = {"bucket_cap_mb": 0.002}
DDP_CASES = {
    "mlp": Case("mlp", ddp=SMALL),
    "views": Case("cnn", ddp={**SMALL, "gradient_as_bucket_view": True}),
    "unused": Case("experts", ddp={**SMALL, "find_unused_parameters": True}),
    "unused views": Case("experts", ddp={"find_unused_parameters": True, "gradient_as_bucket_view": True}),
    "bf16": Case("transformer", ddp=SMALL, bf16=True),
    "float64": Case("cnn", ddp=SMALL, dtype=torch.float64, optimizer={"fused": True}),
    "half": Case("mlp", ddp=SMALL, dtype=torch.bfloat16, optimizer={"foreach": True}),
    "uneven": Case("mlp", leaves=7, ddp=SMALL),
    "short": Case("cnn", leaves=5, ddp=SMALL, last=1, steps=7),
    "shorter": Case("experts", leaves=4, last=2, steps=7),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", DDP_CASES)
def test_ddp_with_any_buckets_ends_with_the_same_bits(name, tmp_path):
    """The layout of buckets does not matter, nor whether gradients are views of them; no_sync is the sum's own."""
    case = DDP_CASES[name]
    expected = by_one_process(case)

    for ranks in (1, 2, 3):
        assert results(tmp_path / f"{ranks}", ranks, partial(by_ranks, case)) == [expected] * ranks, f"{ranks} ranks"


@pytest.mark.sample(2)
@pytest.mark.parametrize("ddp", [None, SMALL], ids=["alone", "ddp"])
@pytest.mark.parametrize("model", ["transformer", "batch"])
def test_the_number_of_ranks_may_change_in_mid_run(model, ddp, tmp_path):
    """4 ranks, then 1, 2 and 3, each from what the one before saved."""
    case = Case(model, steps=8, ddp=ddp)
    expected = results(tmp_path / "whole", 1, partial(by_ranks, case))

    for until, ranks in ((2, 4), (4, 1), (6, 2), (8, 3)):
        found = results(tmp_path / f"{until}", ranks, partial(by_ranks, case, until=until, path=tmp_path / "state.pt"))

    assert found == expected * 3


@pytest.mark.sample(3)
@pytest.mark.parametrize("ddp", [None, SMALL], ids=["alone", "ddp"])
@pytest.mark.parametrize("model", ["batch", "average", "instance"])
def test_running_statistics_are_gathered_by_leaf(model, ddp, tmp_path):
    """The whole state, running statistics included, is that of one rank."""
    case = Case(model, ddp=ddp)
    (expected,) = results(tmp_path / "one", 1, partial(by_ranks, case))

    for ranks in (2, 3):
        assert results(tmp_path / f"{ranks}", ranks, partial(by_ranks, case)) == [expected] * ranks


@pytest.mark.parametrize("model", ["batch", "average", "instance"])
def test_running_statistics_are_those_of_one_process_but_for_rounding(model):
    """The batch's statistics are rounded before they are applied. Counts are the same."""
    case = Case(model, clip=None)
    training = Training(case)
    exact = ExactSum(training.model, rank=0, ranks=1, leaves=case.leaves, mapping=None, rng_seed=SEED)
    plain = case.built()
    before = {name: one.clone() for name, one in plain.named_buffers()}
    with exact.step(1) as mine:
        for leaf in mine:
            with exact.leaf(leaf):
                case.loss(training.model, 1, leaf)
            case.loss(plain, 1, leaf)

    tracked = dict(training.model.named_buffers())
    for name, one in plain.named_buffers():
        torch.testing.assert_close(tracked[name], one, rtol=1e-5, atol=1e-6)
        assert not torch.equal(one, before[name]) or (model, name) == ("instance", "norm.num_batches_tracked")


def test_draws_depend_on_seed_step_and_leaf_only():
    """Each of Python's, NumPy's, torch's generators and those of the user; nothing of what was drawn before."""

    def drawn(*place):
        torch.rand(3)
        held = torch.Generator().manual_seed(5)
        seed_leaf(*place, [held])
        return random.random(), np.random.rand(), torch.rand(()).item(), torch.rand((), generator=held).item()

    places = [(1, 1, 0), (1, 1, 1), (1, 2, 0), (2, 1, 0)]
    found = [drawn(*place) for place in places]

    assert found == [drawn(*place) for place in places]
    assert [len(set(one)) for one in zip(*found, strict=True)] == [4] * 4
