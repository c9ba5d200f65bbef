"""Keys that the environment sets, as `tolariad check` shows them."""

from __future__ import annotations

import json

from tests.cli.test_tolariad import COSTS
from tolariad.cli import checking


def test_check_shows_what_the_environment_sets_with_its_variable(tolariad, monkeypatch):
    """A key that --set sets too is said to be overridden; JSON has them as well."""
    monkeypatch.setattr(checking, "_costs", lambda _: COSTS)
    monkeypatch.setenv("TOLARIA__learning_rate__base_lr", "0.25")
    monkeypatch.setenv("TOLARIA__epochs", "9")
    _, words, _ = tolariad("check", "--task", "digits", "--set", "epochs=4")
    _, as_json, _ = tolariad("check", "--task", "digits", "--json")

    assert "environment    epochs = 9   (TOLARIA__epochs, but --set comes after it)\n" in words
    assert "               learning_rate.base_lr = 0.25   (TOLARIA__learning_rate__base_lr)\n" in words
    found = json.loads(as_json)
    assert found["config"]["tolaria"]["epochs"] == 9
    assert found["environment"]["learning_rate.base_lr"] == "TOLARIA__learning_rate__base_lr"


def test_check_says_the_whole_batch_of_several_ranks(tolariad, monkeypatch):
    """Samples of a batch, times those of a step, times the ranks."""
    monkeypatch.setattr(checking, "_costs", lambda _: COSTS)
    _, words, _ = tolariad("check", "--task", "digits", "--set", "parallel.ranks=3", "--set", "accumulate=2")
    assert "batches of 32, 2 of them a step on each of 3 ranks: 192 samples a step in all\n" in words
    exact = ("--set", "parallel.ranks=3", "--set", "parallel.exact=true", "--set", "parallel.leaves=4")
    _, words, _ = tolariad("check", "--task", "digits", *exact)
    assert "batches of 32, 4 of them a step on 3 ranks, added in their order: 128 samples a step\n" in words
