"""An optimizer with a closure in a loop of one's own: torch's numbers, exact over ends, kills and skipped batches."""

from __future__ import annotations

import pytest
import torch

from tests.library.loops.closures import EPOCHS, OPTIMIZERS, PARTS, batches, closure_of, network, plain, recorded
from tests.library.loops.programs import configured, die, killed
from tests.library.small import bits
from tests.recorded import events_of, of, sound
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.library import LoopMisused
from tolariad.trainer.errors import SetupRefused

STEPS = EPOCHS * PARTS


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_numbers_are_those_of_the_plain_loop(tmp_path, kind):
    """The weights, and the loss of every step: that of the first evaluation, before the update."""
    model, losses = plain(kind)
    ours, _ = recorded(tmp_path / "run", kind)
    steps = of(events_of(tmp_path / "run"), m.StepCompleted)
    assert [one.loss for one in steps] == losses
    assert all(one.grad_norm > 0 for one in steps)
    assert bits(ours) == bits(model)


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_loop_that_ended_early_goes_on_to_the_same_bits(tmp_path, kind, how):
    """Stopped, from a checkpoint in the midst of the history that LBFGS keeps; killed, by steps that are made again."""
    calm, _ = plain(kind)
    if how == "stopped":
        recorded(tmp_path / "run", kind, lambda step, run: run.stop() if step == 3 else None)
    else:
        killed(lambda: recorded(tmp_path / "run", kind, lambda step, run: die() if step == 3 else None))
    model, applied = recorded(tmp_path / "run", kind)
    assert len(applied) == (STEPS - 3 if how == "stopped" else STEPS)
    assert bits(model) == bits(calm)
    sound(tmp_path / "run")


def test_an_audit_of_every_update_accuses_nobody(tmp_path):
    """Gradients of a closure are made within the step, after the audit has looked."""
    recorded(tmp_path / "run", "adam", audit={"every_steps": 1})
    assert not of(events_of(tmp_path / "run"), m.AuditDiffered)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_batch_that_is_not_finite_leaves_no_trace(tmp_path, kind):
    """Whoever resumes after it skips it again."""

    def poisoned():
        data = batches()
        data[2][0][3, 2] = torch.nan
        return data

    def failing(step, run):
        if step == PARTS:
            raise InterruptedError

    whole, applied = recorded(tmp_path / "whole", kind, given=poisoned)
    with pytest.raises(InterruptedError):
        recorded(tmp_path / "run", kind, failing, given=poisoned)
    model, _ = recorded(tmp_path / "run", kind, given=poisoned)
    skipped = of(events_of(tmp_path / "whole"), m.StepSkipped)
    assert applied == [number % PARTS != 2 for number in range(STEPS)]
    assert [one.reason for one in skipped] == [m.SkipReason.NON_FINITE] * EPOCHS
    assert all(value.isfinite().all() for value in whole.state_dict().values())
    assert bits(model) == bits(whole)
    sound(tmp_path / "run")


@pytest.mark.parametrize("flags", [{"foreach": True}, {"fused": True}])
def test_the_implementation_of_an_optimizer_is_a_part_of_the_context(tmp_path, flags):
    """It changes bits, and the program chooses it."""
    model = network()
    for number, options in enumerate([{}, flags]):
        optimizer = torch.optim.Adam(model.parameters(), **options)
        run = Tolaria(configured(learning_rate={}), run_dir=tmp_path / f"{number}").run(
            model, optimizer, torch.utils.data.DataLoader(range(1), batch_size=None)
        )
        for _ in run.epochs(1):
            for _ in run.batches():
                run.step(closure=lambda: model(batches()[0][0]).square().mean())
    plain, other = (of(events_of(tmp_path / f"{n}"), m.ExecutionContextRecorded)[0] for n in range(2))
    assert f"{next(iter(flags))}=True" in other.environment.optimizers
    assert "True" not in plain.environment.optimizers
    assert plain.hash != other.hash


class Fits:
    """A task with such an optimizer and no loop."""

    def __init__(self):
        self.evaluations = 0

    def loss(self, model, batch):
        self.evaluations += 1
        inputs, targets = batch
        return {"loss": (model(inputs) - targets).square().mean(), "seen": float(self.evaluations)}


class Sharp:
    """Its `training_step` gives the loss of the first pass, and the closure for the second."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def training_step(self, model, batch, run):
        inputs, targets = batch
        closure = closure_of(model, self._optimizer, inputs, targets)
        run.update("host", (model(inputs) - targets).square().mean(), closure=closure)


@pytest.mark.parametrize("kind", ["lbfgs", "sam"])
def test_a_task_trains_with_such_an_optimizer_to_the_same_bits(tmp_path, kind):
    """By `loss`, which is called as often as the optimizer asks; or by `training_step`."""
    calm, _ = plain(kind)
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    task = Fits() if kind == "lbfgs" else Sharp(optimizer)
    rate = {"base_lr": optimizer.param_groups[0]["lr"], "policy": "constant", "warmup_epochs": 0}
    tolaria = Tolaria(configured(learning_rate=rate), run_dir=tmp_path / "run")
    tolaria.train(
        model, torch.utils.data.DataLoader(batches(), batch_size=None), None, EPOCHS, task=task, optimizer=optimizer
    )
    steps = of(events_of(tmp_path / "run"), m.StepCompleted)
    assert len(steps) == STEPS
    assert bits(model) == bits(calm)
    if kind == "lbfgs":
        assert task.evaluations > STEPS
        assert tolaria.get_metrics()["seen"] < task.evaluations


@pytest.mark.parametrize(
    ("step", "options", "error", "says"),
    [
        (lambda run, loss: run.step(loss()), {}, LoopMisused, r"LBFGS evaluates the loss several times"),
        (lambda run, loss: run.step(closure=lambda: None), {}, SetupRefused, r"closure\(\) must return a tensor"),
        (lambda run, loss: run.step(closure=loss), {"precision": "fp16"}, SetupRefused, "a closure makes its own"),
        (lambda run, loss: run.step(closure=loss), {"accumulate": 2}, LoopMisused, "set accumulate to 1"),
    ],
)
def test_what_a_closure_cannot_do_is_refused_by_name(tmp_path, step, options, error, says):
    """With what to do instead."""
    model, (inputs, targets) = network(), batches()[0]
    run = Tolaria(configured(learning_rate={}, **options), run_dir=tmp_path / "run").run(
        model, OPTIMIZERS["lbfgs"](model.parameters()), torch.utils.data.DataLoader(range(PARTS), batch_size=None)
    )

    def loop():
        for _ in run.epochs(1):
            for _ in run.batches():
                step(run, lambda: (model(inputs) - targets).square().mean())

    with pytest.raises(error, match=says):
        loop()
