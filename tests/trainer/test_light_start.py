"""Training without the compiler's import: no bit differs, and a task that uses the compiler notices nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tolariad.trainer.torch_private import choice, light_start

ROOT = Path(__file__).resolve().parents[2]
CASES = 12
# What the compiler prints of its use, in a process that never had the stand-in.
USED = """\
parts ddp_optimizer None
one configuration [True, True, True] True torch._dynamo.config
around tensor([1., 1.]) of 2 graphs
broken tensor([4., 4.]) of 2 graphs
stepping ['tensor([0., 0.]) of 3 graphs', \
'tensor([2.6660, 2.6660]) of 0 graphs', 'tensor([5.0048, 5.0048]) of 0 graphs']
weights [0.6650709509849548, 0.6650709509849548]
limit 3 names True True
functions True True True
"""


def begun(seed: int, count: int, *how: str) -> subprocess.Popen[str]:
    """A process that trains the cases of that seed."""
    command = [sys.executable, "-m", "tests.trainer.light_start_cases", str(seed), str(count), *how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def compared(light: str, torchs: str, count: int, share: float) -> None:
    """Every line of both ways. More than this share of the cases was trained to its end."""
    ours, theirs = light.splitlines(), torchs.splitlines()
    assert [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other] == []
    trained = [line for line in ours if line.endswith("trained")]
    print(f"{count} cases, {len(trained)} trained to their end, the others are refused by torch")
    assert len(ours) >= count
    assert len(trained) > count * share


def test_no_bit_differs_without_the_compilers_import(seed, template):
    """Optimizers, dtypes, hooks of every kind, closures, views, in-place hooks, drawn; then the compiler itself is
    used.
    """
    process = begun(seed, CASES, "torch")
    program = ROOT / "tests" / "trainer" / "light_start_cases.py"
    light = template.run([seed, CASES, "light", "use"], folder=Path.cwd(), program=str(program))
    torchs, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert light.returncode == 0, light.stderr
    trained, found, used = light.stdout.partition("found ")
    # Four of five are, so by chance no fewer than these in a million draws.
    compared(trained, torchs, CASES, share=0.2)
    place, _, used = used.partition("\n")
    assert found
    assert place.endswith("/torch/_dynamo/__init__.py")
    assert used == USED


def test_a_rank_starts_without_the_compiler(template):
    """Its process group and its DistributedDataParallel ask for two functions, whose answers need no compiler."""
    program = ROOT / "tests" / "trainer" / "light_start_rank.py"
    done = template.run([], folder=Path.cwd(), program=str(program))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["compiler False", "compiler True, same True"]


@pytest.mark.torture
def test_no_bit_differs_in_thousands_of_cases(seed):
    """The same, for longer, and the compiler is used with and without the stand-in."""
    processes = [begun(seed + 1, 5000, how, "use") for how in ("light", "torch")]
    (light, errors), (torchs, others) = (process.communicate(timeout=600) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], errors + others
    compared(light, torchs, 5000, share=0.7)
    assert light.endswith(USED)


def test_the_stand_in_is_for_a_torch_that_asks_as_known(monkeypatch):
    """This one does. One that keeps the answer elsewhere, or a wish for public ways only, gets no stand-in."""
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert light_start.asks_as_known()

    def otherwise(fn, recursive=True):
        return torch.disable(fn, recursive, wrapping=False)

    with monkeypatch.context() as changed:
        changed.setattr(torch, "_disable_dynamo", otherwise)
        assert not light_start.install()
    with monkeypatch.context() as changed:
        changed.setattr(choice, "ONLY_PUBLIC", True)
        assert not light_start.install()
    assert "torch._dynamo" not in sys.modules
