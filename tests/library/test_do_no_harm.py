"""The autopilot does no harm: unusual but healthy runs are not rolled back, and no kind of batch is always skipped."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.recorded import events_of, findings, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.calc.detection.comparison import Judgement

BATCH, STEPS, SIDE = 64, 800, 16
CONFIG = {
    "rng_seed": 7,
    "torch_threads": 1,
    "learning_rate": {"base_lr": 0.003, "warmup_epochs": 0},
    "checkpoint": {"min_gap_s": 0, "throttle_mb_s": None},
    "checkpoint_interval_epochs": 1,
    "journal": {"sync": "batch"},
    "budgets": {"act": False},
}


def drawn(steps: int = STEPS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Generator]:
    """Return inputs, their classes, the step of each, and the generator for further draws."""
    source = torch.Generator().manual_seed(2)
    rows = torch.randn(SIDE, 4, generator=source)
    inputs = torch.randn(steps * BATCH, SIDE, generator=source)
    return inputs, (inputs @ rows).argmax(1), torch.arange(steps * BATCH) // BATCH, source


def plain(steps: int = STEPS) -> TensorDataset:
    return TensorDataset(*drawn(steps)[:2])


def swinging() -> TensorDataset:
    """The share of random labels alternates between 0 and 0.8 every 200 steps, and the loss follows it."""
    inputs, labels, step, source = drawn()
    share = 0.4 - 0.4 * torch.cos(2.0 * math.pi * step / 200)
    wrong = torch.rand(share.shape, generator=source) < share
    return TensorDataset(inputs, torch.where(wrong, torch.randint(4, labels.shape, generator=source), labels))


def harder() -> TensorDataset:
    """A curriculum: every 100 steps the inputs become noisier and the loss rises to a new level."""
    inputs, labels, step, source = drawn()
    noise = torch.randn(inputs.shape, generator=source)
    return TensorDataset(inputs + 0.5 * (step // 100)[:, None] * noise, labels)


def two_tasks() -> TensorDataset:
    """About every twentieth batch is of a second task, with labels of its own."""
    inputs, labels, step, source = drawn()
    second = (torch.rand(STEPS, generator=source) < 0.05)[step]
    return TensorDataset(inputs, torch.where(second, 3 - labels, labels), second)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(SIDE, 48), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(48, 4) for _ in range(2))

    def forward(self, inputs, second: bool):
        return self.heads[int(second)](self.trunk(inputs))


class TwoTasks:
    """The second task's loss weighs five times as much."""

    def loss(self, model, batch):
        inputs, labels, second = batch
        found = functional.cross_entropy(model(inputs, bool(second[0])), labels)
        return 5.0 * found if second[0] else found


def train(run_dir, data: TensorDataset, *, model=None, task=None, validation=None, **config):
    """Return the model and the events."""
    if model is None:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(SIDE, 32), nn.ReLU(), nn.Linear(32, 4))
    tolaria = Tolaria({"tolaria": {**CONFIG, **config}}, run_dir=run_dir)
    # Whole batches: to take one from many samples would be half of a step's time.
    batches = TensorDataset(*(one.view(-1, BATCH, *one.shape[1:]) for one in data.tensors))
    held = None if validation is None else DataLoader(validation, 4 * BATCH)
    result = tolaria.train(model, DataLoader(batches, batch_size=None), held, 1, task=task)
    assert result.phase == "completed"
    return model, events_of(run_dir)


def assert_left_alone(events) -> None:
    assert of(events, m.RollbackBegun) == []
    assert of(events, m.RunFrozen) == []
    assert of(events, m.ConservativeModeEntered) == []
    assert len(of(events, m.StepCompleted)) + len(of(events, m.StepSkipped)) == STEPS
    assert len(of(events, m.StepSkipped)) <= STEPS // 100


@pytest.mark.parametrize("made", [swinging, harder], ids=lambda made: made.__name__)
def test_a_healthy_run_whose_loss_swings_or_rises_in_stages_is_left_alone(tmp_path, made):
    """The loss changes by a third and more in a few steps, again and again, because the data does. Where that loses
    nearly all that the loss had come down, the comparison shows that the network still answers the validation.
    """
    _, events = train(tmp_path / "run", made(), validation=plain(8))
    losses = torch.tensor([one.loss for one in of(events, m.StepCompleted)])[199:]
    levels = losses[: len(losses) // 30 * 30].view(-1, 30).mean(1)

    assert levels.max() > 1.3 * levels.min()
    assert {one.judgement for one in of(events, m.StatesCompared)} <= {Judgement.CHANGED}
    assert bool(of(events, m.StatePinned)) is (made is harder)
    assert_left_alone(events)


def test_a_rise_in_stages_without_a_validation_is_left_alone_too(tmp_path):
    """The newest weights are better on the newest batches by more than their noise: they have learnt."""
    _, events = train(tmp_path / "run", harder())

    assert {one.judgement for one in of(events, m.StatesCompared)} == {Judgement.CHANGED}
    assert of(events, m.StatePinned)
    assert_left_alone(events)


def test_a_rare_second_task_is_learnt_with_the_detector_acting(tmp_path):
    """A twentieth of the batches has a loss five times as high: these are almost never skipped."""
    torch.manual_seed(3)
    data = two_tasks()
    inputs, labels, second = data.tensors
    model, events = train(tmp_path / "run", data, model=TwoHeads(), task=TwoTasks())
    skips = [one for one in of(events, m.StepSkipped) if second[BATCH * (one.batch - 1)]]
    with torch.no_grad():
        found = model(inputs[second], second=True).argmax(1)

    assert second[::BATCH].sum() > 30
    assert len(skips) <= 3 + second[::BATCH].sum() / 20
    assert_left_alone(events)
    assert (found == labels[second]).float().mean() > 0.7


class Signed:
    """A loss that is negative at first, and rises without limit from step 500 on."""

    def __init__(self) -> None:
        self.step = 0

    def loss(self, model, batch):
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels) - 3.0 + 0.1 * max(0, self.step - 500)

    def on_step_end(self, model, step):
        self.step = step


class OfAUnit(Signed):
    loss_unit = 1.0


@pytest.mark.parametrize(("task", "has_unit"), [(Signed, False), (OfAUnit, True)])
def test_a_loss_of_either_sign_is_watched_only_if_its_task_declares_a_unit(tmp_path, task, has_unit):
    """Without a loss unit, a rise from -3 to 5 is only recorded. With one a state is kept, and both are compared. A
    loss that rises whatever the weights are is no reason to go back: the newest ones are better on the same batches.
    """
    _, events = train(tmp_path / "run", plain(700), task=task())
    found = findings(events)

    assert any(one.finding.value == ("sustained" if has_unit else "rise") for one in found), found
    assert bool(of(events, m.StatePinned)) is bool(of(events, m.StatesCompared)) is has_unit
    assert of(events, m.RollbackBegun) == []
