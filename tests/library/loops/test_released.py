"""After a run, however it ended, model and optimizer are the program's own: others may train, or the next phase."""

from __future__ import annotations

import copy
import gc
import signal
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules import module as modules
from torch.utils.data import DataLoader

from tests.library.loops.programs import configured, killed, loader
from tests.library.small import bits, data, network
from tests.recorded import sound
from tolariad import Tolaria
from tolariad.daemon.request import StartRefused
from tolariad.trainer.torch_private.hooks import BEFORE_ANY_STEP

EPOCHS = 2


def hooks_of(model, optimizer):
    """Everything that a run may put on these objects, or on torch's classes."""
    return (
        dict(BEFORE_ANY_STEP),
        dict(modules._global_buffer_registration_hooks),
        {name: copy.copy(held) for name, held in vars(optimizer).items() if name not in ("state", "param_groups")},
        [{name: copy.copy(held) for name, held in vars(one).items() if name != "training"} for one in model.modules()],
    )


def loop(run, model, after=lambda step: None):
    step = 0
    for _ in run.epochs(EPOCHS):
        for inputs, targets in run.batches():
            run.step(cross_entropy(model(inputs), targets))
            step += 1
            after(step)


def raises(run, model, optimizer):
    def boom(step):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        loop(run, model, boom)


def breaks(run, model, optimizer):
    for _ in run.epochs(EPOCHS):
        for inputs, targets in run.batches():
            run.step(cross_entropy(model(inputs), targets))
            break
        break


def interrupts(run, model, optimizer):
    loop(run, model, lambda step: signal.raise_signal(signal.SIGINT) if step == 2 else None)


def completes(run, model, optimizer):
    loop(run, model)


def is_complete(run, model, optimizer):
    loop(run, model)
    again = run._again()
    loop(again, model)


def is_refused(run, model, optimizer):
    breaks(run, model, optimizer)
    other = Tolaria(configured(learning_rate={}), run_dir=run.result.run_dir).run(model, optimizer, loader(of=data(48)))
    with pytest.raises(StartRefused):
        loop(other, model)


@pytest.mark.parametrize("ends", [raises, breaks, interrupts, completes, is_complete, is_refused])
def test_whatever_ends_a_run_nothing_of_it_stays_on_model_and_optimizer(tmp_path, ends):
    """Another optimizer makes the step that it makes on a copy that no run has seen."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()  # runs of other tests that nobody holds any more take their hooks with them
    before = hooks_of(model, optimizer)

    def made():
        run = Tolaria(configured(learning_rate={}), run_dir=tmp_path / "run").run(model, optimizer, loader())
        run._again = made
        return run

    run = made()
    ends(run, model, optimizer)
    assert hooks_of(model, optimizer)[:3] == before[:3]
    assert [one.keys() for one in hooks_of(model, optimizer)[3]] == [one.keys() for one in before[3]]
    theirs = copy.deepcopy(model)
    for one in (model, theirs):
        one.eval()
        other = torch.optim.Adam(one.parameters(), lr=0.01)
        other.zero_grad()
        cross_entropy(one(data().tensors[0]), data().tensors[1]).backward()
        other.step()
    assert bits(model) == bits(theirs)
    assert run.result.run_dir == tmp_path / "run"


def two_phases(folder, after=lambda phase, step: None):
    """Train with Adam, then the same model with LBFGS, as for a differential equation: two runs of one program."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    for phase, kind in enumerate((torch.optim.Adam, partial(torch.optim.LBFGS, max_iter=4))):
        optimizer = kind(model.parameters(), lr=0.01)
        options = {"learning_rate": {}, "checkpoint": {"min_gap_s": 0, "interval_s": 1e-6}}
        run = Tolaria(configured(**options), run_dir=folder / f"{phase}").run(
            model, optimizer, DataLoader(range(8), batch_size=None)
        )
        for _ in run.epochs(EPOCHS):
            for number in run.batches():
                points = torch.rand(12, 1) if number % 2 else torch.linspace(0, 1, 12)[:, None]
                run.step(closure=lambda points=points: residual(model, points))
                after(phase, number)
    return model


def residual(model, x):
    """u'' = -u, with u(0) = 0 and u'(0) = 1."""
    x.requires_grad_(True)
    u = model(x) * x
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return (second + u).square().mean() + (first[0] - 1).square().mean()


@pytest.mark.sample(1)
@pytest.mark.parametrize("kills", [("capture:3", "publish:6"), ("step:9", "manifest:2"), ("step:20", "capture:4")])
def test_two_phases_in_one_program_go_on_where_they_were_killed(tmp_path, kills):
    """At dense checkpoints. The first phase, once complete, gives its weights to the second one at each start."""
    calm = two_phases(tmp_path / "calm")
    for point in kills:
        killed(lambda: two_phases(tmp_path / "run"), point)
    assert bits(two_phases(tmp_path / "run")) == bits(calm)
    for phase in range(2):
        sound(tmp_path / "run" / f"{phase}")
