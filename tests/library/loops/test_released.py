"""After a run, however it ended, model and optimizer are the program's own: others may train, or the next phase."""

from __future__ import annotations

import copy
import signal

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.modules import module as modules

from tests.library.loops.programs import configured, die, killed, loader
from tests.library.small import bits, data, network
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
    """Train with one optimizer, then the same model with another one: two runs of one program."""
    model = network()
    for phase, kind in enumerate((torch.optim.Adam, torch.optim.SGD)):
        optimizer = kind(model.parameters(), lr=0.01)
        run = Tolaria(configured(learning_rate={}, rng_seed=phase), run_dir=folder / f"{phase}").run(
            model, optimizer, loader()
        )
        loop(run, model, lambda step, phase=phase: after(phase, step))
    return model


@pytest.mark.parametrize("dies_in", [0, 1])
def test_two_phases_in_one_program_go_on_where_they_were_killed(tmp_path, dies_in):
    """The first phase is complete at the second start, and gives its weights to the second one."""
    calm = two_phases(tmp_path / "calm")
    killed(lambda: two_phases(tmp_path / "run", lambda phase, step: die() if (phase, step) == (dies_in, 11) else None))
    assert bits(two_phases(tmp_path / "run")) == bits(calm)
