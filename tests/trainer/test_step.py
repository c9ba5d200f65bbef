"""A step measures the loss and the norm over all gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.trainer.bare_setup import CPU, setup_of
from tolariad.core.calc.settings.model import GradNorm, Settings
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.gradients import forward_backward, update
from tolariad.trainer.step.precision import Scaling


def test_the_norm_is_that_of_all_gradients_together():
    """The norm equals that of torch's own clipping."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    setup = setup_of(model, lambda model, batch: model(batch).square().mean())
    measured = forward_backward(setup, [torch.ones(5, 3)])
    expected = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    assert measured.grad_norm == pytest.approx(expected.item(), rel=1e-6)
    assert measured.loss == model(torch.ones(5, 3)).square().mean().item()


def test_a_task_that_clips_reports_its_own_norm():
    """The norm before clipping is not measured twice; a loss in a dict is found."""
    setup = setup_of(
        nn.Linear(1, 1),
        lambda model, batch: {"loss": model(batch).sum(), "other": 5},
        clip=lambda model: torch.tensor(123.0),
    )
    assert forward_backward(setup, [torch.ones(1, 1)]).grad_norm == 123.0


def test_sparse_gradients_are_measured():
    """An embedding with sparse gradients counts by its values."""
    model = nn.Embedding(4, 2, sparse=True)
    setup = setup_of(model, lambda model, batch: (3.0 * model(batch)).sum())
    assert forward_backward(setup, [torch.tensor([1, 1])]).grad_norm == pytest.approx(72**0.5)


def test_a_loss_that_is_not_finite_is_reported_as_it_is():
    """It is neither raised nor replaced: the detector decides."""
    setup = setup_of(nn.Linear(1, 1), lambda model, batch: model(batch).sum() * float("inf"))
    measured = forward_backward(setup, [torch.ones(1, 1)])
    assert not torch.isfinite(torch.tensor(measured.loss))


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (torch.ones(2), "tensor with one element"),
        (1.0, "tensor with one element"),
        ({"other": 1}, "a dict without `loss`; it has other"),
        (torch.tensor(1.0), r"loss\(model, batch\) returns has no gradient. Give it .* not `loss.detach\(\)`"),
    ],
)
def test_a_loss_that_is_no_single_number_with_a_gradient_is_refused(loss, says):
    """The message has the expected and the actual result."""
    with pytest.raises(SetupRefused, match=says):
        forward_backward(setup_of(nn.Linear(1, 1), lambda model, batch: loss), [None])


def test_any_other_exception_of_a_backward_pass_is_the_tasks_own():
    """A graph that was used already is torch's to explain."""
    model = nn.Linear(1, 1)
    loss = model(torch.ones(1, 1)).square().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        forward_backward(setup_of(model, lambda *_: loss), [None])


def test_micro_batches_give_the_gradients_of_their_mean():
    """Three parts of equal size lead to the loss, the norm and the gradients of the whole, up to rounding."""
    whole = torch.arange(18.0).reshape(6, 3) / 10
    loss = lambda model, batch: model(batch).square().mean()  # noqa: E731
    model = nn.Linear(3, 2)
    at_once = forward_backward(setup_of(model, loss), [whole])
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    in_parts = forward_backward(setup_of(model, loss), whole.chunk(3))
    assert in_parts.loss == pytest.approx(at_once.loss, rel=1e-6)
    assert in_parts.grad_norm == pytest.approx(at_once.grad_norm, rel=1e-6)
    for was, now in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(now.grad, was)


def test_the_norm_is_measured_now_and_then_and_the_loss_is_the_same():
    """Every third step from the first; the others have -1. A task that clips always has the norm."""
    model = nn.Linear(3, 4)
    setup = setup_of(model, lambda model, batch: model(batch).square().mean())
    setup.settings = Settings(grad_norm=GradNorm(every=3))
    found = [forward_backward(setup, [torch.ones(5, 3), torch.ones(2, 3)], step) for step in range(1, 8)]
    assert [measured.grad_norm == -1 for measured in found] == [False, True, True, False, True, True, False]
    assert len({measured.loss for measured in found}) == 1
    setup.clip = lambda model: torch.tensor(5.0)
    assert forward_backward(setup, [torch.ones(5, 3)], 2).grad_norm == 5.0


def test_a_step_in_which_everything_is_frozen_leaves_the_loss_scale_alone():
    """Without gradients the scale is not updated; the next step with gradients is ordinary."""
    model = nn.Linear(3, 4)
    setup = setup_of(model, lambda model, batch: model(batch).square().mean())
    setup.scaling = Scaling(CPU)
    for frozen in (True, False):
        drop = model.zero_grad if frozen else list
        setup.rates.drop_frozen_gradients = drop
        measured = forward_backward(setup, [torch.ones(5, 3)])
        assert (measured.grad_norm == 0.0) is frozen
        assert not measured.overflow
        update(setup, skip=False)
    assert setup.scaling.state()["_growth_tracker"] == 1
