"""The compiler's settings and announcements, in both ways."""

from __future__ import annotations

import inspect

import pytest
import torch

from tests.trainer.torch_private.ways import way
from tolariad.trainer.torch_private import compiler

__all__ = ["way"]


def graphs_of(shapes, arguments=None):
    """Compile a function, call it with these shapes, and return the number of graphs."""
    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    def doubled(x):
        return x * 2

    compiled = torch.compile(doubled, backend=counting, dynamic=False, **(arguments or {}))
    for size in shapes:
        compiled(torch.ones(size))
    return len(graphs)


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_more_shapes_are_compiled_than_torchs_own_limit(way):
    """The public way has torch's limit before 2.12; what lies beyond it is computed all the same."""
    import torch._dynamo.config as limits

    is_argument = "recompile_limit" in inspect.signature(torch.compile).parameters
    with limits.patch(recompile_limit=2):
        found = graphs_of(range(2, 8), compiler.limit_graphs(32, strict=False))
    assert found == (6 if way == "private" or is_argument else 2)


def test_choices_of_kernels_are_repeated_in_a_strict_run(way):
    """Inductor does not measure kernels against each other if their bits differ."""
    import torch._inductor.config as settings

    with settings.patch(deterministic=False):
        compiler.repeat_choices(strict=True)
        assert settings.deterministic is (way == "private")


def test_the_compilers_work_is_announced(way):
    """Before and after it, and not after the block. The public way announces nothing."""
    seen = []
    with compiler.watched(lambda: seen.append("begun"), lambda: seen.append("ended")):
        graphs_of([3])
    assert seen == (["begun", "ended"] if way == "private" else [])
    graphs_of([3])
    assert len(seen) <= 2


def test_a_task_may_reset_the_compiler(way):
    """Torch then forgets who is told; the end of the block is no error."""
    with compiler.watched(print, print):
        assert graphs_of([3]) == 1
        torch.compiler.reset()
