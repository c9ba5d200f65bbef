"""A loop that calls backward() itself: its gradients are used, or the error says what to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.library.loops.programs import configured
from tests.library.small import bits, data, network
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.library import LoopMisused

EPOCHS, BATCH = 2, 12


def plain(accumulate: int, most: float) -> nn.Module:
    """Train with a backward pass for each batch, and gradients clipped in the loop."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for number, (inputs, targets) in enumerate(batches(), 1):
            (cross_entropy(model(inputs), targets) / accumulate).backward()
            if number % accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), most)
                optimizer.step()
                optimizer.zero_grad()
    return model


def batches():
    return DataLoader(data(), BATCH)


@pytest.mark.parametrize(
    "gives", [torch.Tensor.detach, torch.Tensor.item, lambda loss: loss], ids=["alone", "number", "used"]
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_that_the_loop_made_and_clipped_are_used(tmp_path, monkeypatch, accumulate, gives):
    """Bit for bit those of the plain loop; the loss of the step is the mean of the numbers that it gave."""
    monkeypatch.setattr(nn.Dropout, "forward", lambda self, given: given)
    model, given = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tolaria = Tolaria(configured(learning_rate={}, accumulate=accumulate), run_dir=tmp_path / "run")
    run = tolaria.run(model, optimizer, batches())
    for _ in run.epochs(EPOCHS):
        for number, (inputs, targets) in enumerate(run.batches(), 1):
            loss = cross_entropy(model(inputs), targets)
            (loss / accumulate).backward(retain_graph=False)
            if number % accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            given.append(loss.item())
            run.step(gives(loss))
    steps = of(events_of(tmp_path / "run"), m.StepCompleted)
    means = [sum(given[at : at + accumulate]) / accumulate for at in range(0, len(given), accumulate)]
    assert [one.loss for one in steps] == means
    assert all(one.grad_norm <= 0.5001 for one in steps)
    assert bits(model) == bits(plain(accumulate, 0.5))


def kept(model, loss, run):
    loss.backward(retain_graph=True)
    run.step(loss)


def another(model, loss, run):
    model[0].weight.square().sum().backward()
    run.step(loss)


def in_part(model, loss, run):
    other = model[0].weight.square().sum()
    other.backward()
    run.step(loss + other)


def unknown(model, loss, run):
    loss.backward()
    run.step(None)


def gone(model, loss, run):
    loss.backward()
    model.zero_grad()
    run.step(loss)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (kept, "gradients were there before"),
        (another, "gradients were there before"),
        (in_part, "gradients were there before"),
        (unknown, "the loss is recorded too"),
        (gone, "its gradients are gone"),
    ],
)
def test_where_it_is_not_clear_whose_gradients_count_the_error_says_what_to_do(tmp_path, body, says):
    """Never are two backward passes added up in silence."""
    model = network()
    run = Tolaria(configured(learning_rate={}), run_dir=tmp_path / "run").run(
        model, torch.optim.SGD(model.parameters(), lr=0.1), batches()
    )

    def loop():
        for _ in run.epochs(1):
            for inputs, targets in run.batches():
                body(model, cross_entropy(model(inputs), targets), run)

    with pytest.raises(LoopMisused, match=says) as raised:
        loop()
    for word in ("loss.detach()", "zero_grad", "`accumulate`", "clip_gradients"):
        assert word in str(raised.value)
