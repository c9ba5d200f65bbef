"""A layer that a hook or a loop unfreezes is trained from there on, by the configured optimizer too, and said."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.library.loops.programs import configured, die, killed, loader
from tests.library.small import bits, network
from tests.recorded import sound
from tolariad import Tolaria

EPOCHS = 3


def frozen():
    model = network()
    model[0].requires_grad_(requires_grad=False)
    return model


def trained(folder, *, optimizer=lambda model: None, after=lambda step: None):
    """Unfreeze the first layer at the begin of epoch 2, as one does it."""
    model, step = frozen(), 0
    tolaria = Tolaria(configured(optimizer={"name": "adamw", "weight_decay": 0.1}), run_dir=folder)
    run = tolaria.run(model, optimizer(model), loader())
    firsts = []
    for epoch in run.epochs(EPOCHS):
        if epoch >= 2:
            model[0].requires_grad_(requires_grad=True)
        for inputs, targets in run.batches():
            run.step(cross_entropy(model(inputs), targets))
            after(step := step + 1)
        firsts.append(model[0].weight.detach().clone())
    return model, firsts


def test_the_configured_optimizer_trains_what_is_unfrozen_and_the_log_says_so(tmp_path, caplog):
    """Until then not even weight decay moves it."""
    with caplog.at_level(logging.WARNING):
        _, firsts = trained(tmp_path / "run")
    assert torch.equal(firsts[0], frozen()[0].weight)
    assert not torch.equal(firsts[1], firsts[0])
    (said,) = [one.getMessage() for one in caplog.records if "unfrozen" in one.getMessage()]
    assert said.startswith("0.weight, 0.bias: unfrozen. From here on the optimizer trains them")


@pytest.mark.parametrize("at", [4, 12])
def test_a_run_that_died_before_or_after_goes_on_to_the_same_bits(tmp_path, at):
    """What is unfrozen is a part of the model's state."""
    calm, _ = trained(tmp_path / "calm")
    killed(lambda: trained(tmp_path / "run", after=lambda step: die() if step == at else None))
    assert bits(trained(tmp_path / "run")[0]) == bits(calm)
    sound(tmp_path / "run")


def test_what_no_optimizer_has_is_said(tmp_path, caplog):
    """A program's own optimizer is left as it is."""
    with caplog.at_level(logging.WARNING):
        _, firsts = trained(tmp_path / "run", optimizer=lambda model: torch.optim.SGD(model[1:].parameters(), lr=0.1))
    assert torch.equal(firsts[-1], firsts[0])
    assert any("no optimizer of the run has them" in one.getMessage() for one in caplog.records)


def test_a_rollback_of_a_run_that_has_ended_gives_its_reason(tmp_path, caplog):
    """It returns False, as before."""
    tolaria = Tolaria(configured(), run_dir=tmp_path / "run")
    tolaria.train(network(), loader(), None, 1)
    with caplog.at_level(logging.WARNING):
        assert tolaria.rollback(1) is False
    (said,) = [one.getMessage() for one in caplog.records if "rollback" in one.getMessage()]
    assert "no run is active" in said
