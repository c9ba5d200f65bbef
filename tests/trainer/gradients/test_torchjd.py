"""Aggregators of TorchJD by name, and what they do to random generators."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.gradients.models import (
    aggregator,
    backward,
    drawn,
    flat_gradient,
    forked,
    gradients_of,
    retained,
)
from tolariad.trainer.data.randomness import rng_states


@pytest.mark.parametrize("method", ["pcgrad", "average", "priority", "torchjd:PCGrad", "torchjd:Random"])
def test_no_global_generator_is_touched(method):
    """The draws of the data and of dropout stay what they were."""
    if method.startswith("torchjd"):
        pytest.importorskip("torchjd", reason="TorchJD is not installed (extra aggregators)")
    model, losses = forked(7)
    before = rng_states()

    backward(model, losses, of=aggregator(conflict_resolution_method=method))

    after = rng_states()
    assert torch.equal(before["torch"], after["torch"])
    assert before["python"] == after["python"]
    assert before["numpy"][1].tolist() == after["numpy"][1].tolist()
    assert before["numpy"][2:] == after["numpy"][2:]


def test_torchjds_aggregators_give_their_own_result():
    """The shared parameters get what the aggregator makes of the rows, and draws depend on the step alone."""
    aggregation = pytest.importorskip("torchjd.aggregation", reason="TorchJD is not installed (extra aggregators)")
    model, losses = forked(7, names=("left",))
    trunk = list(model.trunk.parameters())
    rows = torch.stack([flat_gradient(losses["host"], trunk), flat_gradient(0.5 * losses["left"], trunk)])

    for name in ("MGDA", "PCGrad", "AlignedMTL"):
        model.zero_grad()
        with retained(losses):
            backward(model, losses, ("left",), of=aggregator(conflict_resolution_method=f"torchjd:{name}"))
        found = torch.cat([parameter.grad.flatten() for parameter in trunk])
        assert torch.allclose(found, getattr(aggregation, name)()(rows), rtol=1e-9), name
        losses = model.losses(*drawn(7, ("left",)))

    draws = []
    for step in (1, 1, 2):
        model.zero_grad()
        torch.manual_seed(len(draws))
        losses = model.losses(*drawn(7, ("left",)))
        torch.manual_seed(len(draws))
        backward(model, losses, ("left",), of=aggregator(conflict_resolution_method="torchjd:Random"), step=step)
        draws.append(gradients_of(model)["trunk.weight"])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Nothing", "TorchJD has no aggregator 'Nothing'; it has AlignedMTL"),
        ("GradVac", "remembers earlier steps"),
        ("Constant", "needs arguments"),
        ("Aggregator", "TorchJD has no aggregator"),
    ],
)
def test_torchjds_names_that_cannot_be_used_are_refused(name, said):
    """The message says why, and what there is."""
    pytest.importorskip("torchjd", reason="TorchJD is not installed (extra aggregators)")

    with pytest.raises(ValueError, match=said):
        aggregator(conflict_resolution_method=f"torchjd:{name}")


def test_without_torchjd_the_message_names_the_extra(monkeypatch):
    """An installation without the extra says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "torchjd", None)

    with pytest.raises(ValueError, match=r"pip install 'tolariad\[aggregators\]'"):
        aggregator(conflict_resolution_method="torchjd:MGDA")
