"""Training computes the same bits by public ways alone; what is off with a torch is said before the run begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.torch_private.train_one import digests
from tests.trainer.torch_private.ways import module
from tolariad.trainer.build import build
from tolariad.trainer.torch_private import choice

ROOT = Path(__file__).resolve().parents[3]
TASKS = ["on_device.py:Plain", "on_device.py:Several", "on_device.py:Cautious", "augmenting.py:Augmenting"]


def test_training_by_public_ways_computes_the_same_bits(tmp_path):
    """In a process that uses no private name: interrupted runs with buffers, averages, and several optimizers."""
    command = [sys.executable, "-m", "tests.trainer.torch_private.train_one", str(tmp_path / "public"), *TASKS]
    process = subprocess.Popen(
        command,
        env={**os.environ, choice.VARIABLE: "public", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    private = digests(tmp_path / "private", TASKS)
    printed, _ = process.communicate(timeout=300)
    assert printed.splitlines() == [*private, "public"]


def test_a_name_that_torch_does_not_have_is_a_note(monkeypatch, configured):
    """The public way is used, and the run says what it costs."""
    monkeypatch.setattr(choice, "_absent", {})
    monkeypatch.setattr(choice, "TRIED", (torch.__version__.rpartition(".")[0],))
    assert choice.notes() == ()
    monkeypatch.delattr(torch, "_foreach_lerp_")
    lists = module("lists", "private")
    parameters, averages = [torch.ones(2)], [torch.zeros(2)]
    lists.lerp_(averages, parameters, 0.25)
    assert averages[0].tolist() == [0.25, 0.25]
    setup = build(configured(f"{ROOT}/tests/trainer/tasks/on_device.py:Plain"))
    expected = f"torch {torch.__version__} has no _foreach_lerp_: many small tensors take a call each"
    assert setup.notes[-1] == expected


@pytest.mark.parametrize(
    ("only_public", "tried", "said"),
    [(True, None, "TOLARIAD_TORCH=public"), (False, ("1.2", "1.3"), "tests ran with (1.2 to 1.3)")],
)
def test_the_wish_and_the_version_are_notes(monkeypatch, only_public, tried, said):
    """A version is never a reason to refuse: what counts is what it has."""
    monkeypatch.setattr(choice, "ONLY_PUBLIC", only_public)
    monkeypatch.setattr(choice, "TRIED", tried or (torch.__version__.rpartition(".")[0],))
    assert [said in note for note in choice.notes()] == [True]
