"""The lines of `tolariad check` on pruning: groups, refusals and the first budget of a task's model."""

from __future__ import annotations

import msgspec
import pytest

from tests.trainer.tasks.analysed import FILE
from tolariad.trainer.probes.answering import tried
from tolariad.trainer.probes.messages import EstimateCosts


@pytest.fixture
def checked(configured):
    """Check a task and return what was found of pruning."""

    def check(task, **prune):
        configuration = configured(f"{FILE}:{task}", prune={"enabled": True, **prune})
        costs, code = tried(EstimateCosts(config=configuration.decode()))
        assert code == 0
        return costs.pruning

    return check


def test_the_model_is_counted_with_what_a_first_cycle_may_mask(checked):
    """Of 56 channels and 1 115 parameters, half of which may ever go. A cycle may take 3 channels of 24, and 4 of 32.

    With a channel of `a` go a row of 6, a bias, a scale, a shift, and 32 columns: 41. With one of `b` go a row of 24,
    a bias, and 3 columns: 28.
    """
    found = checked("Lossy", budgets=[{"epoch": 0, "share": 0.1}], caps=[{"epoch": 0, "share": 1.0}])
    narrow = checked("Lossy", budgets=[{"epoch": 0, "share": 1.0}], caps=[{"epoch": 0, "share": 1.0}])
    usual = checked("Lossy")

    assert (found.why, found.layers, found.channels, found.heads, found.total) == ("", 2, 56, 0, 56)
    assert [(one.name, one.why) for one in found.refused] == [("out", "its channels are outputs of the model")]
    assert found.parameters == 24 * 7 + 2 * 24 + 32 * 25 + 3 * 33
    assert (found.budget, narrow.budget, usual.budget) == (111, 557, 11)
    assert (found.first, narrow.first, usual.first) == (3, 7, 0)
    assert found.seconds > 0


def test_a_run_that_does_not_prune_is_not_traced(configured):
    """No word of pruning, and no time for it."""
    costs, _ = tried(EstimateCosts(config=configured(f"{FILE}:Lossy").decode()))

    assert costs.pruning is None


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("ByNameOnly", "the model is called with 'scale' by name only"),
        ("Itself", "the task's training_step makes its own updates"),
        ("Flat", ""),
    ],
)
def test_what_an_analysis_would_refuse_is_said_before_the_run(checked, task, why):
    """With the same reason. A model without groups has none: nothing of it can be masked."""
    found = checked(task)

    assert found.why.startswith(why)
    assert bool(found.why) == bool(why)
    assert (found.total, found.first) == (0, 0)


def test_any_failure_of_the_analysis_is_an_answer(checked, monkeypatch, capsys):
    """A package beside torch-pruning may be broken. The costs are told all the same."""

    def broken(*_):
        raise AttributeError("module 'timm' has no attribute 'models'")

    monkeypatch.setattr("tolariad.trainer.probes.prunable.groups_of", broken)
    found = checked("Lossy")

    assert found.why == "the analysis would raise AttributeError: module 'timm' has no attribute 'models'"
    assert "Traceback" in capsys.readouterr().err
    assert msgspec.json.encode(found)
