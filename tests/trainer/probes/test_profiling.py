"""`ProfileSteps`: the parts of a step add up to it, the operations are those of a plain loop, the trace can be read."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.trainer.tasks import swept
from tests.trainer.tasks.swept import Network
from tolariad.trainer.probes import profiling
from tolariad.trainer.probes.answering import tried
from tolariad.trainer.probes.copying import built_copy
from tolariad.trainer.probes.messages import ProfileSteps
from tolariad.trainer.probes.parts import Parts
from tolariad.trainer.probes.profiling import _Loop

SGD = {"optimizer": {"name": "sgd"}, "learning_rate": {"base_lr": 0.1}, "batch_size": 10}


@pytest.fixture
def asked(configured, tmp_path):
    """Return a request to profile a task of tasks/swept.py."""

    def give(name="Network", output="trace.json", **explicit):
        made = configured(f"{swept.FILE}:{name}", **{"epochs": 1, **SGD, **explicit})
        return ProfileSteps(config=made.decode(), warmup=2, steps=8, output=str(tmp_path / output))

    return give


def ranges(file):
    """Count the ranges in a trace by name."""
    content = Path(file).read_bytes()
    events = json.loads(gzip.decompress(content) if file.endswith(".gz") else content)["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") == "user_annotation")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "explicit", "each"),
    [
        ("Network", {}, {"data": 1, "forward": 1, "backward": 1, "optimizer": 1}),
        ("Network", {"accumulate": 3}, {"data": 1, "forward": 3, "backward": 3, "optimizer": 1}),
        ("Network", {"ema": {"decay": 0.9}}, {"data": 1, "forward": 1, "backward": 1, "optimizer": 1, "average": 1}),
        ("TwoOptimizers", {}, {"data": 1, "forward": 1, "backward": 1, "optimizer": 2}),
        ("Updating", {}, {"data": 1, "forward": 1, "backward": 2, "optimizer": 2, "tolariad": 2}),
    ],
)
def test_every_part_of_a_step_is_in_the_trace_and_on_the_clock(asked, name, explicit, each):
    """As often as the step has it, in each of the eight steps; what is left is tolariad's own."""
    trial = asked(name, **explicit)
    found, code = tried(trial)
    seen = ranges(trial.output)

    assert code == 0, found
    assert {part: seen[part] / 8 for part in each} == each
    assert seen["step"] == 8
    assert {part.name for part in found.parts} == {*each, "tolariad"}
    assert all(part.ms > 0 for part in found.parts)
    assert found.step_ms == pytest.approx(sum(part.ms for part in found.parts))
    assert Network.hooks == 0


def test_the_operations_are_those_of_the_step(asked):
    """Calls are per step, times too; the dearest is first; ranges are no operations."""
    found, _ = tried(asked())
    by_name = {one.name: one for one in found.operations}

    assert by_name["aten::addmm"].calls == 2  # two linear layers
    assert by_name["aten::tanh"].calls == by_name["aten::tanh_backward"].calls == 1
    assert [one.cpu_ms for one in found.operations] == sorted((one.cpu_ms for one in found.operations), reverse=True)
    assert not {"step", "data", "forward", "Optimizer.step#SGD.step"} & set(by_name)
    assert sum(one.cpu_ms for one in found.operations) < found.profiled_ms


def test_the_steps_are_those_of_the_training(asked, daemon_in, configured):
    """After as many steps the weights have the bits of a training, so nothing that is timed differs from it."""
    explicit = {"optimizer": {"name": "adam"}}
    daemon = daemon_in("run", 2, checkpoint_every_epoch=False)
    trained = daemon.train_here(configured(f"{swept.FILE}:Network", **{**SGD, "epochs": 2, **explicit}))
    setup = built_copy(asked(epochs=2, **explicit)).setup
    loop = _Loop(setup, 12)
    with loop.watched():
        loop.run(7)
        loop.timed(5)

    assert daemon.last_step == 12
    for (name, one), other in zip(setup.model.state_dict().items(), trained.model.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_a_name_that_ends_in_gz_is_compressed(asked):
    """Any reader of gzip opens it, and no other file is left."""
    trial = asked(output="trace.json.gz")
    found, code = tried(trial)

    assert (code, ranges(trial.output)["step"]) == (0, 8)
    assert found.trace_bytes == Path(trial.output).stat().st_size
    assert [path.name for path in Path(trial.output).parent.glob("*trace*")] == ["trace.json.gz"]


def test_a_trace_that_cannot_be_written_is_74(asked, monkeypatch):
    """An earlier trace stays if the new one fails."""
    trial = asked()
    Path(trial.output).write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profiling.profile, "export_chrome_trace", full)
    failed, code = tried(trial)

    assert code == 74
    assert failed.error == f"{trial.output}: No space left on device"
    assert Path(trial.output).read_text() == "before"


def test_backward_is_torchs_own_again_afterwards(asked):
    """Also after an exception; no hook stays with the optimizer."""
    real = torch.autograd.backward
    loop = _Loop(built_copy(asked()).setup, 1)
    (optimizer,) = (owner.optimizer for owner in loop._setup.owners)
    hooks = len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)
    replaced = []

    def fails():
        with loop.watched():
            replaced.append(torch.autograd.backward is not real)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()

    assert replaced == [True]
    assert torch.autograd.backward is real
    assert (len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)) == hooks


def test_inner_parts_do_not_count_for_the_outer_one(monkeypatch):
    """Every moment belongs to the innermost part; what is in none is tolariad's own."""
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    parts = Parts(torch.device("cpu"))
    monkeypatch.setattr(parts, "_now", lambda: next(clock))
    parts.begin()
    parts.around("forward", parts.around("backward", lambda: None))()
    parts.end()

    assert {name: spent for name, spent in parts.seconds.items() if spent} == {
        "tolariad": 1.0 + 5.0,
        "forward": 2.0 + 4.0,
        "backward": 3.0,
    }
