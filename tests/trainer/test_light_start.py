"""Training without the compiler's import: no bit differs, and a task that uses the compiler notices nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tolariad.trainer.process import light_start

ROOT = Path(__file__).resolve().parents[2]
CASES = 24


def begun(seed: int, how: str, count: int) -> subprocess.Popen[str]:
    """A process that trains the cases of that seed."""
    command = [sys.executable, "-m", "tests.trainer.light_start_cases", str(seed), str(count), how]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def compared(seed: int, count: int) -> None:
    """Every line of both ways."""
    processes = [begun(seed, how, count) for how in ("light", "torch")]
    (light, errors), (torchs, _) = (process.communicate(timeout=600) for process in processes)
    assert processes[0].returncode == 0, errors
    ours, theirs = light.splitlines(), torchs.splitlines()
    assert [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other] == []
    trained = [line for line in ours if line.endswith("trained")]
    print(f"{count} cases, {len(trained)} trained to their end, the others are refused by torch")
    assert len(ours) > count
    assert len(trained) > count * 0.7


def test_no_bit_differs_without_the_compilers_import(seed):
    """Optimizers, dtypes, hooks of every kind, closures, views, in-place hooks, drawn; then the compiler itself is
    used.
    """
    compared(seed, CASES)


@pytest.mark.torture
def test_no_bit_differs_in_thousands_of_cases(seed):
    """The same, for longer."""
    compared(seed + 1, 5000)


def test_the_stand_in_is_for_versions_that_were_tried(monkeypatch):
    """Other versions of torch get no stand-in; this one is tested."""
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert torch.__version__.rpartition(".")[0] in light_start.TRIED, "try this version, then add it to TRIED"
    monkeypatch.setattr(light_start, "TRIED", ("2.12", "2.1"))
    light_start.install()
    assert "torch._dynamo" not in sys.modules
