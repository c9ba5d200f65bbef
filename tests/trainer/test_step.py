"""What a step measures: the loss and the norm over all gradients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step import forward_backward


def setup_of(model, loss, **task):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return SimpleNamespace(model=model, optimizer=optimizer, task=SimpleNamespace(loss=loss, **task))


def test_the_norm_is_that_of_all_gradients_together():
    """The same as torch's own clipping measures."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    setup = setup_of(model, lambda model, batch: model(batch).square().mean())
    measured = forward_backward(setup, torch.ones(5, 3))
    expected = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    assert measured.grad_norm == pytest.approx(expected.item(), rel=1e-6)
    assert measured.loss == model(torch.ones(5, 3)).square().mean().item()


def test_a_task_that_clips_reports_its_own_norm():
    """The norm before clipping, not measured twice; a loss in a dict is taken from it."""
    setup = setup_of(
        nn.Linear(1, 1),
        lambda model, batch: {"loss": model(batch).sum(), "other": 5},
        clip_gradients=lambda model: torch.tensor(123.0),
    )
    assert forward_backward(setup, torch.ones(1, 1)).grad_norm == 123.0


def test_sparse_gradients_are_measured():
    """An embedding with sparse gradients counts by its values."""
    model = nn.Embedding(4, 2, sparse=True)
    setup = setup_of(model, lambda model, batch: (3.0 * model(batch)).sum())
    assert forward_backward(setup, torch.tensor([1, 1])).grad_norm == pytest.approx(72**0.5)


def test_a_loss_that_is_not_finite_is_reported_as_it_is():
    """Not raised, not replaced: what follows from it is decided elsewhere."""
    setup = setup_of(nn.Linear(1, 1), lambda model, batch: model(batch).sum() * float("inf"))
    measured = forward_backward(setup, torch.ones(1, 1))
    assert not torch.isfinite(torch.tensor(measured.loss))


@pytest.mark.parametrize("loss", [torch.ones(2), 1.0, {"other": 1}])
def test_a_loss_that_is_no_single_number_is_refused(loss):
    """The sentence says what was expected and what came."""
    with pytest.raises(SetupRefused, match="tensor with one element"):
        forward_backward(setup_of(nn.Linear(1, 1), lambda model, batch: loss), None)
