"""A compiled model trains, is saved and resumes like an uncompiled one."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from tolariad.channel import Activity
from tolariad.trainer import build
from tolariad.trainer.checkpoints.files import MODEL_FILE
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step import compiled, stepper
from tolariad.trainer.step.compiled import compile_forward
from tolariad.trainer.torch_private import compiler

TASK = f"{Path(__file__).with_name('tasks')}/augmenting.py:Augmenting"


@functools.cache
def why_not(backend: str) -> str:
    """Return why the compiler does not work here; empty if it does."""
    model = nn.Linear(1, 1)
    compile_forward(model, strict=True, backend=backend)
    try:
        model(torch.ones(1, 1)).sum().backward()
    except Exception as error:
        return f"torch.compile does not work here: {type(error).__name__}: {str(error)[:200]}"
    return ""


# The default one makes C++ of each of six graphs, half a minute of work; what is added here is the same for both.
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.torture)])
def test_a_compiled_run_resumes_to_the_same_bits(daemon_in, configured, monkeypatch, backend):
    """Also from within an epoch, if another shape comes first; files have the names of the model."""
    if why_not(backend):
        pytest.skip(why_not(backend))
    monkeypatch.setattr(build, "compile_forward", functools.partial(compile_forward, backend=backend))
    configuration = configured(TASK, epochs=2, batch_size=8, compile=True)
    plain, broken = daemon_in("plain", 2), daemon_in("broken", 2)
    for daemon, interruptions in ((plain, [None]), (broken, [(6, 6), None])):
        for interruption in interruptions:
            if interruption:
                daemon.checkpoint_after_step, daemon.exit_after_step = interruption
            torch._dynamo.reset()  # as in a process of its own
            daemon.train_here(configuration)
    assert broken.ended
    assert broken.files("end") == plain.files("end")
    model = plain.files("end")[MODEL_FILE]
    assert b'"0.weight"' in model
    assert b"_orig_mod" not in model


def test_the_same_shape_gets_the_same_graph_whatever_was_met_before(monkeypatch):
    """One graph for each shape; too many shapes are an error with strict determinism."""
    if why_not("eager"):
        pytest.skip(why_not("eager"))
    monkeypatch.setattr(compiled, "_GRAPHS_MAX", 4)
    graphs = []

    def counting(graph, inputs):
        graphs.append([tuple(one.shape) for one in inputs if one.ndim == 2 and one.shape[1] == 3][-1])
        return graph.forward

    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 2))
    compile_forward(model, strict=True, backend=counting)
    for size in (4, 5, 4, 6, 5):
        model(torch.ones(size, 3))
    assert graphs == [(4, 3), (5, 3), (6, 3)]

    def many():
        for size in range(2, 6):
            model(torch.ones(size, 3))

    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        many()
    torch._dynamo.reset()


def test_a_compiler_that_does_not_work_is_a_sentence():
    """At the first batch; an error of the model's own code stays what it is."""

    def broken(graph, inputs):
        raise OSError("no C++ compiler here")

    torch._dynamo.reset()
    model = nn.Linear(3, 2)
    compile_forward(model, strict=True, backend=broken)
    with pytest.raises(SetupRefused, match=r"no C\+\+ compiler here.*Install what is missing, or set compile: false"):
        model(torch.ones(4, 3))

    class Mistaken(nn.Linear):
        def forward(self, x):
            raise KeyError("mine")

    mistaken = Mistaken(3, 2)
    compile_forward(mistaken, strict=True, backend="eager")
    with pytest.raises(KeyError, match="mine"):
        mistaken(torch.ones(4, 3))
    torch._dynamo.reset()


def test_a_compiled_method_is_called_without_a_wrapper_after_the_first_time():
    """The wrapper only explains what fails at first."""
    if why_not("eager"):
        pytest.skip(why_not("eager"))
    model = nn.Linear(3, 2)
    compile_forward(model, strict=True, backend="eager")
    before = model.forward
    assert torch.equal(model(torch.ones(4, 3)), nn.functional.linear(torch.ones(4, 3), model.weight, model.bias))
    assert model.forward is not before
    torch._dynamo.reset()


def test_the_compilers_work_is_announced(daemon_in, configured, monkeypatch):
    """The heartbeat shows the compiler's work, and afterwards the activity before it."""
    if why_not("eager"):
        pytest.skip(why_not("eager"))
    seen = []

    def looking(graph, inputs):
        seen.append(daemon.end.page.heartbeat.activity)
        return graph.forward

    def after(*arguments):
        seen.append(daemon.end.page.heartbeat.activity)
        return forward_backward(*arguments)

    forward_backward = stepper.forward_backward
    monkeypatch.setattr(stepper, "forward_backward", after)
    monkeypatch.setattr(build, "compile_forward", functools.partial(compile_forward, backend=looking))
    torch._dynamo.reset()
    daemon = daemon_in("run", 1)
    daemon.exit_after_step = 2
    daemon.train_here(configured(TASK, epochs=1, batch_size=8, compile=True))
    # First for the trial of `evaluate`, then for training.
    assert seen[:4] == [Activity.COMPILE, Activity.STEP, Activity.COMPILE, Activity.STEP]
    with compiler.watched(seen.clear, seen.clear), nullcontext():
        pass
    assert seen
