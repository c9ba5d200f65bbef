"""What cannot be summed exactly is refused by name, on every rank; nothing is silently wrong."""

from __future__ import annotations

import os
import resource

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.ranks.cases import SEED, Case
from tests.trainer.ranks.groups import results
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.ranks.exact import ExactSum, RankLost


def alone(model, **settings):
    return ExactSum(model, **{"rank": 0, "ranks": 1, "leaves": 2, "mapping": None, "rng_seed": SEED, **settings})


def one_step(model, loss, **settings):
    """Make the leaves of a step."""
    exact = alone(model, **settings)
    with exact.step(1) as mine:
        for leaf in mine:
            with exact.leaf(leaf):
                loss(model).backward()


def total(model):
    return model(torch.ones(4, 6)).sum()


class Counting(nn.Linear):
    def __init__(self, *, persistent=True, replaces=False):
        super().__init__(6, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=persistent)
        self.replaces = replaces

    def forward(self, x):
        if self.replaces:
            self.calls = self.calls + 1
        else:
            self.calls.add_(1)
        return super().forward(x)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(torch.tanh(self.norm(x)))


class OwnNorm(nn.BatchNorm1d):
    def forward(self, x):
        self.running_mean.lerp_(x.mean(0), 0.1)
        return x * self.weight


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Counting, "changes the buffer calls"),
        (lambda: Counting(replaces=True), "changes the buffer calls"),
        (lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2))), "changes the buffer 0.param"),
        (Shared, "norm is called twice in one micro-batch"),
        (lambda: OwnNorm(6), "changes the buffer running_mean"),
    ],
)
def test_state_that_would_depend_on_the_number_of_ranks(model, why):
    """A forward pass that counts, iterates, or moves statistics in a way of its own is refused in its first leaf."""
    with pytest.raises(SetupRefused, match=why):
        one_step(model(), total)


def test_a_cache_may_change():
    """A buffer that the state leaves out is a cache."""
    model = Counting(persistent=False)
    one_step(model, total)
    assert model.weight.grad is not None


def test_layers_are_as_they_were_after_a_leaf_that_raises():
    """Also in the middle of a forward pass, and in evaluation the statistics are the layer's own."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))
    mean, exact = model[0].running_mean, alone(model)
    with pytest.raises(RuntimeError), exact.step(1), exact.leaf(0):
        model(torch.ones(4, 5))

    assert model[0].running_mean is mean
    assert model[0].momentum == 0.1
    model.eval()
    assert torch.isfinite(model(torch.ones(4, 6))).all()


def hooked():
    model = nn.Linear(6, 2)
    model.bias.register_post_accumulate_grad_hook(lambda one: None)
    return model


def sparse(model):
    return model(torch.tensor([1, 2])).sum()


@pytest.mark.parametrize(
    ("model", "settings", "why"),
    [
        (lambda: nn.LazyLinear(2), {}, "weight has no shape yet"),
        (lambda: nn.Sequential(nn.SyncBatchNorm(6)), {}, "0 is a SyncBatchNorm"),
        (hooked, {}, "bias has a hook after its accumulation"),
        (lambda: nn.Linear(6, 2), {"ranks": 3, "leaves": 2}, "set leaves to 3 or more"),
        (lambda: nn.Linear(6, 2), {"ranks": 2}, "2 ranks need one shared mapping"),
    ],
)
def test_models_and_settings_without_exact_sums(model, settings, why):
    """Said when the sums are set up."""
    with pytest.raises(SetupRefused, match=why):
        alone(model(), **settings)


def test_sparse_gradients():
    """An embedding with sparse=True is named."""
    with pytest.raises(SetupRefused, match=r"the gradient of weight is torch.sparse_coo of "):
        one_step(nn.Embedding(4, 2, sparse=True), sparse)


def test_a_gradient_that_was_there_before():
    """It would count on one rank only."""
    model = nn.Linear(6, 2)
    total(model).backward()
    with pytest.raises(SetupRefused, match=r"^weight has a gradient before the step begins"):
        one_step(model, total)


def test_a_parameter_that_is_trained_later():
    """It has no place in the mapping."""
    model = nn.Linear(6, 2)
    model.bias.requires_grad_(False)
    exact = alone(model)
    model.bias.requires_grad_(True)
    with pytest.raises(SetupRefused, match=r"^bias was frozen"), exact.step(1):
        pass


def test_leaves_out_of_order():
    """A leaf that is left out, or computed twice, is a fault of the caller."""
    exact = alone(nn.Linear(6, 2))
    with pytest.raises(ValueError, match="leaf 1 was begun, but leaf 0"), exact.step(1), exact.leaf(1):
        pass
    exact = alone(nn.Linear(6, 2))
    with pytest.raises(ValueError, match=r"leaf 1 of range\(0, 2\) was not computed"), exact.step(1), exact.leaf(0):
        pass
    exact = alone(nn.Linear(6, 2))
    with pytest.raises(ValueError, match="has 1 to 2 leaves, not 3"), exact.step(1, 3):
        pass


@pytest.mark.parametrize(
    ("differs", "why"),
    [
        ("threads", r"another number of torch threads than rank \d: 2 there, 1 here"),
        ("leaves", r"another number of leaves than rank \d: 3 there, 2 here"),
        ("model", r"another model than rank \d\."),
        ("seed", r"another seed than rank \d: 12 there, 11 here"),
    ],
)
def test_ranks_that_differ(differs, why, tmp_path):
    """Each rank compares itself with the others when the sums are set up, and names what differs."""

    def work(rank, ranks, mapping):
        is_other = rank == 1
        torch.set_num_threads(2 if is_other and differs == "threads" else 1)
        settings = {"rank": rank, "ranks": ranks, "mapping": mapping}
        settings["leaves"] = 3 if is_other and differs == "leaves" else 2
        settings["rng_seed"] = SEED + 1 if is_other and differs == "seed" else SEED
        try:
            alone(nn.Linear(6, 3 if is_other and differs == "model" else 2), **settings)
        except SetupRefused as error:
            return str(error)
        return ""

    first, second = results(tmp_path / "group", 2, work)
    assert second
    with pytest.raises(SetupRefused, match=why):
        raise SetupRefused(first)


def test_a_mapping_that_was_used_before(tmp_path):
    """What is left there would be taken for a rank that has come."""

    def work(rank, ranks, mapping):
        case = Case("mlp", leaves=2)
        for _ in range(2):
            try:
                alone(case.built(), rank=rank, ranks=ranks, mapping=mapping)
            except SetupRefused as error:
                return str(error)
        return ""

    assert all("was used by another group already" in one for one in results(tmp_path / "group", 2, work))


@pytest.mark.parametrize("others", [(2, 2), (1, 1)], ids=["step", "leaves"])
def test_ranks_at_different_steps(others, tmp_path):
    """One rank has skipped a step that the other makes, or takes another number of batches for it."""

    def work(rank, ranks, mapping):
        exact = alone(nn.Linear(6, 2), rank=rank, ranks=ranks, mapping=mapping)
        try:
            with exact.step(*(others if rank else (1, 2))) as mine:
                for leaf in mine:
                    with exact.leaf(leaf):
                        pass
        except (SetupRefused, RankLost) as error:
            return str(error)
        return ""

    found = results(tmp_path / "group", 2, work)
    assert any("all ranks must make the same steps" in one for one in found)
    assert all(found)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"static_graph": True}, "static_graph=True counts the gradients of one micro-batch only"),
        ({"hook": True}, "DDP takes no communication hook"),
    ],
)
def test_ddp_that_cannot_be_silent(settings, why, tmp_path):
    """A static graph, and a hook of the user's."""

    def work(rank, ranks, mapping):
        has_hook = settings.get("hook", False)
        ddp = DistributedDataParallel(nn.Linear(6, 2), static_graph=not has_hook)
        if has_hook:
            ddp.register_comm_hook(None, lambda _, bucket: torch.futures.Future())
        try:
            alone(ddp, rank=rank, ranks=ranks, mapping=mapping)
        except SetupRefused as error:
            return str(error)
        return ""

    assert all(why in one for one in results(tmp_path / "group", 2, work))


def test_a_machine_without_the_memory(tmp_path):
    """It is said before the first step, and does not kill a process at its first write."""

    def work(rank, ranks, mapping):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        signalled = []
        import signal

        signal.signal(signal.SIGXFSZ, lambda *_: signalled.append(1))
        try:
            alone(nn.Linear(1000, 1000), rank=rank, ranks=ranks, mapping=mapping)
        except SetupRefused as error:
            return str(error)
        return str(os.fstat(mapping).st_size)

    assert all("MiB of shared memory" in one for one in results(tmp_path / "group", 2, work))


def test_a_backward_pass_outside_of_a_leaf(tmp_path):
    """DDP would reduce it in an order of its own."""

    def work(rank, ranks, mapping):
        ddp = DistributedDataParallel(nn.Linear(6, 2))
        alone(ddp, rank=rank, ranks=ranks, mapping=mapping)
        try:
            total(ddp).backward()
        except Exception as error:
            return str(error)
        return ""

    found = results(tmp_path / "group", 2, work)
    assert all("reduce the gradients of 2 parameters outside of a leaf" in one for one in found)
