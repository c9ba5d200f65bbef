"""Every legal use of tensors and hooks gives what a plain backward pass gives.

Each case is a host and a seed that share parameters. The two losses agree, so nothing is projected: the gradients of
separate passes must be those of `(host + factor * seed).backward()`.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.trainer.gradients.models import aggregator, all_close, all_equal, gradients_of, one_loss
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.gradients import SeedGradientInfo

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)


class Doubled(torch.autograd.Function):
    """A function whose two inputs get the same tensor as their gradient."""

    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


class Case(nn.Module):
    """A model of a few parameters, and its two losses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.a = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.own = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def hidden(self):
        return X @ self.a * self.scale

    def losses(self):
        out = self.hidden()
        return out.square().mean(), (out * self.own).square().mean() + out.square().mean()


class Aliased(Case):
    """Two parameters get one tensor as gradient, and a gradient that is expanded from one number."""

    def hidden(self):
        return X @ Doubled.apply(self.a, self.b) * self.scale + self.b.sum() * 1e-3


class Views(Case):
    """Slices, transposes and a parameter that is used twice."""

    def hidden(self):
        return X[:, :2] @ self.a[1:].T.contiguous()[:, :2].T @ self.a.T * self.scale + self.a.view(-1)[4]


class Changed(Case):
    """Tensors that are changed in place after they were computed."""

    def hidden(self):
        out = X @ self.a
        out.mul_(self.scale)
        out[0] += self.b[0]
        return out


class Hooked(Case):
    """A hook that changes the gradient in place, and one that replaces it."""

    def __init__(self) -> None:
        super().__init__()
        self.a.register_hook(lambda gradient: gradient.mul_(0.5))
        self.scale.register_hook(lambda gradient: 3 * gradient)

    def hidden(self):
        out = super().hidden()
        out.register_hook(lambda gradient: gradient.mul_(2.0))
        return out


class After(Case):
    """A hook that torch calls after a gradient was added, as an optimizer within the backward pass uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = []
        self.a.register_post_accumulate_grad_hook(lambda p: self.calls.append(p.grad.clone()))


class Strided(Case):
    """A parameter whose memory is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(self.a.detach().T.clone().T)


class Checkpointed(Case):
    """Activations that are computed again."""

    def hidden(self):
        return checkpoint(lambda x: (x @ self.a).tanh() * self.scale, X, use_reentrant=False)


class Complex(Case):
    """A complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.randn(3, 3, dtype=torch.complex128))

    def hidden(self):
        return (X.to(torch.complex128) @ self.c).abs() * self.scale


class Sparse(Case):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True, dtype=torch.float64)

    def hidden(self):
        return self.table(torch.tensor([0, 2, 2, 4])) @ self.a * self.scale


class NoGradient(Case):
    """A function that gives no gradient to one of its inputs."""

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a * 1.0

        @staticmethod
        def backward(ctx, gradient):
            return gradient, None

    def hidden(self):
        return X @ self.Half.apply(self.a, self.b) * self.scale


CASES = (Case, Aliased, Views, Changed, Hooked, After, Strided, Checkpointed, Complex, Sparse, NoGradient)


def run(model, *, times=1, **options):
    """Backward passes by the aggregator, a step each. Returns the last one's result."""
    for _ in range(times):
        host, seed = model.losses()
        info = one_loss(seed, stage=Stage.SHADOWING)
        found = aggregator(**options).backward_with_aggregation(model, host, [info], 4, 1, 10, step=1)
    return found


def plain(model, *, times=1) -> None:
    """The same by torch."""
    for _ in range(times):
        host, seed = model.losses()
        (host + 0.5 * seed).backward()


def dense(model):
    """Copies of the gradients, sparse ones as dense ones."""
    return {name: g.to_dense() if g is not None and g.is_sparse else g for name, g in gradients_of(model).items()}


def missing(model) -> set[str]:
    """The names of the parameters without a gradient."""
    return {name for name, parameter in model.named_parameters() if parameter.grad is None}


@pytest.mark.sample(6)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("times", [1, 2])
def test_separate_passes_give_what_one_gives(case, times):
    """Values, layout and the parameters without a gradient are torch's, also when gradients are added to others."""
    ours, torchs = case(), case()

    found = run(ours, times=times)
    plain(torchs, times=times)

    assert found.conflicts == 0
    assert found.shared >= 2
    assert [name for name, g in dense(ours).items() if g is None] == [
        name for name, g in dense(torchs).items() if g is None
    ]
    assert all_close(dense(ours), dense(torchs), 1e-14)
    for mine, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        if other.grad is not None:
            assert (mine.grad.layout, mine.grad.dtype, mine.grad.shape) == (
                other.grad.layout,
                other.grad.dtype,
                other.grad.shape,
            )
            assert mine.grad.is_sparse or mine.grad.stride() == other.grad.stride()
            assert not mine.grad.requires_grad


def test_a_hook_after_accumulation_is_called_once_with_the_sum():
    """It sees the gradient that the optimizer will see."""
    model = After()
    run(model)

    assert len(model.calls) == 1
    assert torch.equal(model.calls[0], model.a.grad)


def test_gradients_stay_in_the_memory_that_they_were_given():
    """A gradient that is a view of the user's own buffer is added to in place."""
    model = Case()
    flat = torch.zeros(9, dtype=torch.float64)
    model.a.grad = flat.view(3, 3)

    run(model)

    assert model.a.grad.data_ptr() == flat.data_ptr()
    assert flat.abs().sum() > 0


def test_gradients_do_not_change_when_the_rows_are_used_again():
    """A gradient that a step has given is the parameter's own memory, not the aggregator's."""
    model, of = Case(), aggregator()
    kept = []
    for factor in (1.0, 100.0):
        model.zero_grad(set_to_none=True)
        host, seed = model.losses()
        of.backward_with_aggregation(model, factor * host, [one_loss(factor * seed)], 4, 1, 10, step=1)
        kept.append((model.a.grad, model.a.grad.clone()))

    assert all(torch.equal(live, copy) for live, copy in kept)
    assert all(live.untyped_storage().nbytes() == live.nbytes for live, _ in kept)


def test_a_gradient_that_is_missing_leaves_nothing_of_the_step_before():
    """In the second step a function gives no gradient: the row of the first step must not stand for it."""
    gives = [True]

    class Sometimes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2.0

        @staticmethod
        def backward(ctx, gradient):
            return 2.0 * gradient if gives[0] else None

    model, of = Case(), aggregator()
    for gives[0] in (True, False):
        model.zero_grad(set_to_none=True)
        host = Sometimes.apply(model.a).sum() + model.scale
        of.backward_with_aggregation(model, host, [one_loss(model.a.sum(), stage=Stage.SHADOWING)], 4, 1, 10, step=1)

    assert torch.equal(model.a.grad, torch.full_like(model.a, 0.5))


def test_a_retained_graph_can_be_used_again():
    """With `retain_graph` the same losses give the same gradients once more, with and without shared parameters."""
    for every in (1, 2):
        model = Case()
        host, seed = model.losses()
        of = aggregator(every=every)
        from tolariad.trainer.gradients.sources import weigh

        weighed = weigh(host, [one_loss(seed)], 4, (1, 10), {})
        of.add_gradients(host, weighed, 2, retain_graph=True)
        once = gradients_of(model)
        model.zero_grad()
        of.add_gradients(host, weighed, 2)

        assert all_equal(gradients_of(model), once)


def test_an_input_that_requires_a_gradient_gets_the_sum():
    """A leaf that is no parameter is not compared, and gets the gradients of all losses."""
    x = X.clone().requires_grad_()
    model = Case()
    host, seed = (x @ model.a).square().mean(), -(x @ model.a).square().mean()
    expected = 0.9 * torch.autograd.grad(host, x, retain_graph=True)[0]

    found = aggregator().backward_with_aggregation(model, host, [one_loss(seed)], 4, 1, 10)

    assert found.shared == 1
    assert torch.allclose(x.grad, expected, rtol=1e-12)


def test_a_loss_may_be_a_parameter():
    """A 0-dim parameter is a loss of its own, shared or not."""
    model = Case()
    seeds = [one_loss(model.scale), SeedGradientInfo("two", -4 * model.scale, 4, Stage.SHADOWING)]

    found = aggregator().backward_with_aggregation(model, model.scale * 1.0, seeds, 4, 1, 10)

    # The first agrees with the host; the second is projected away.
    assert model.scale.grad.item() == pytest.approx(1.1)
    assert found.conflicts == 2


def test_modules_with_state_run_once():
    """The forward pass is the caller's; separate backward passes run no module again."""
    model = nn.Sequential(nn.Linear(3, 3, dtype=torch.float64), nn.BatchNorm1d(3, dtype=torch.float64))
    out = model(X)

    aggregator().backward_with_aggregation(model, out.square().mean(), [one_loss(out.sum())], 4, 1, 10)

    assert model[1].num_batches_tracked.item() == 1
