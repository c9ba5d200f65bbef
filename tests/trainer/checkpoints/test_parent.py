"""The weights of another run's checkpoint are used completely, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch

from tolariad.core import messages as m
from tolariad.core.calc.detection.course import CourseState
from tolariad.core.calc.detection.detector import DetectorState
from tolariad.storage import CheckpointUnusable
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.start import begin_from

TASK = f"{Path(__file__).parents[1] / 'tasks'}/augmenting.py:Augmenting"


@pytest.fixture
def parent(daemon_in, configured):
    """A run of one epoch, and its last checkpoint."""
    daemon = daemon_in("parent", 1)
    trained = daemon.train_here(configured(TASK, epochs=1, batch_size=8))
    end = daemon.committed[-1]
    ref = m.Parent(run_id="feed", checkpoint=end.id, manifest=end.manifest, folder=str(daemon.run_dir))
    return trained, ref


def with_optimizer(ref):
    return m.Parent(**{name: getattr(ref, name) for name in ref.__struct_fields__} | {"with_optimizer": True})


def nothing():
    """Called after each piece."""


def equal(one, other):
    one, other = one.state_dict(), other.state_dict()
    return all(torch.equal(one[name], other[name]) for name in one)


def test_weights_are_taken_over_and_everything_else_is_the_new_runs_own(parent, configured):
    """Buffers are copied too, and the average starts there; rates, position and random state are not."""
    trained, ref = parent
    setup = build(configured(TASK, epochs=2, batch_size=8, rng_seed=9, ema={"decay": 0.5}))
    drawn = torch.get_rng_state()
    assert not equal(setup.model, trained.model)
    begin_from(setup, ref, nothing)
    assert equal(setup.model, trained.model)
    assert all(torch.equal(v, dict(trained.model.named_parameters())[n]) for n, v in setup.average.tensors.items())
    assert not setup.optimizer.state_dict()["state"]
    assert torch.equal(torch.get_rng_state(), drawn)


def test_the_optimizers_state_comes_along_where_it_is_asked_for(parent, configured):
    """The state is copied, with the settings of the new run."""
    trained, ref = parent
    setup = build(configured(TASK, epochs=1, batch_size=8, optimizer={"weight_decay": 0.5}))
    begin_from(setup, with_optimizer(ref), nothing)
    theirs, ours = trained.optimizer.state_dict(), setup.optimizer.state_dict()
    for index, state in theirs["state"].items():
        assert all(torch.equal(value, ours["state"][index][key]) for key, value in state.items())
    assert ours["param_groups"][0]["weight_decay"] == 0.5


@pytest.mark.parametrize("is_the_same", [True, False])
def test_what_the_loss_began_with_comes_along_where_the_task_is_the_same(daemon_in, configured, tmp_path, is_the_same):
    """Only the loss of the untrained network is taken from the parent's detector, and only for the same task."""
    daemon = daemon_in("parent", 11)
    watch = daemon.train_here(configured(TASK, epochs=11, batch_size=8)).watch
    end = daemon.committed[-1]
    ref = m.Parent(run_id="feed", checkpoint=end.id, manifest=end.manifest, folder=str(daemon.run_dir))
    other = tmp_path / "other.py"
    other.write_text(Path(TASK.partition(":")[0]).read_text() + "# another file\n")
    setup = build(configured(TASK if is_the_same else f"{other}:Augmenting", epochs=1, batch_size=8))
    begin_from(setup, ref, nothing)
    held, given = (msgspec.msgpack.decode(one.state(), type=DetectorState) for one in (watch, setup.watch))

    assert held.course.floor > 0.0
    assert given == DetectorState(course=CourseState(floor=held.course.floor if is_the_same else 0.0))


@pytest.mark.parametrize(
    ("task", "optimizer", "why"),
    [
        ("Wider", "adamw", r"5\.weight: it holds \(3, 64\) torch.float32, the model has \(4, 64\)"),
        ("Deeper", "adamw", r"6\.bias: the checkpoint has no such tensor"),
        ("Augmenting", "sgd", "another kind of optimizer than SGD.*momentum"),
    ],
)
def test_another_structure_is_refused_by_name_before_anything_changes(parent, configured, task, optimizer, why):
    """The error names the tensor that does not fit, or the optimizer that differs."""
    _, ref = parent
    setup = build(configured(TASK.replace("Augmenting", task), epochs=1, batch_size=8, optimizer={"name": optimizer}))
    before = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    with pytest.raises(CheckpointUnusable, match=why):
        begin_from(setup, with_optimizer(ref), nothing)
    assert all(torch.equal(tensor, before[name]) for name, tensor in setup.model.state_dict().items())


def test_a_parent_whose_bytes_are_not_those_that_were_recorded_is_refused(parent, configured):
    """The manifest's hash differs from the one in the new run's first event."""
    _, ref = parent
    manifest = Path(ref.folder) / "checkpoints" / ref.checkpoint / "manifest.json"
    content = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(content))
    with pytest.raises(CheckpointUnusable, match="manifest"):
        begin_from(build(configured(TASK, epochs=1, batch_size=8)), ref, nothing)
