"""P5 in the real loop: whatever a callback does to the rates, the run ends with the weights of an undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.tasks import tampering
from tolariad.core import messages as m
from tolariad.storage.manifest import MODEL_PIECE

TASK = f"{Path(tampering.__file__)}:Tampering"
EPOCHS = 4
# Nothing of ours is changed by these, so there is nothing to find.
HARMLESS = {"defaults", "deep_copy", "through_pickle"}


@pytest.fixture
def trained(daemon_in, configured):
    """Train with a route and an optimizer. Return the weights and the violations."""

    def train(route, optimizer="sgd", **explicit):
        options = {"route": route, "optimizer": optimizer}
        rate = {"base_lr": 0.05, "warmup_epochs": 1}
        daemon = daemon_in(f"{route}-{optimizer}", EPOCHS)
        configuration = configured(
            TASK, epochs=EPOCHS, batch_size=8, task_options=options, learning_rate=rate, **explicit
        )
        daemon.train_here(configuration)
        assert daemon.ended
        found = daemon.of(m.LrViolationDetected)
        return daemon.files("end")[MODEL_PIECE], found

    return train


@pytest.fixture
def calm(trained):
    """The weights of a run without tampering, in which nothing is found."""

    def train(optimizer="sgd"):
        weights, found = trained("none", optimizer)
        assert found == []
        return weights

    return train


@pytest.mark.sample(6)
@pytest.mark.parametrize("route", tampering.ROUTES)
def test_a_callback_that_tampers_changes_no_weight(trained, calm, route):
    """Every route of torch's public interface is found and reported with the line of code."""
    weights, found = trained(route)

    assert weights == calm()
    assert bool(found) == (route not in HARMLESS)
    assert all("tampering.py:" in one.where for one in found), found


@pytest.mark.sample(2)
@pytest.mark.parametrize("optimizer", [name for name in tampering.OPTIMIZERS if name != "sgd"])
def test_every_optimizer_is_held(trained, calm, optimizer):
    """All routes in turn, for each of torch's classes, including Rprop, which steps at rate 0 too."""
    weights, found = trained("all", optimizer)

    assert weights == calm(optimizer)
    assert len({one.what for one in found}) >= 5


def test_the_line_is_exact_from_the_second_time_on(trained):
    """The first violation names the callback, which is then traced line by line."""
    _, found = trained("item")
    source = Path(tampering.__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "the line of `item`" in text)

    assert found[0].where.endswith("in on_step_end")
    assert found[1].where == f"{tampering.__file__}:{line} in item"
    assert (found[1].group, found[1].found) == ("group_0", 1.0)
    assert found[1].expected == pytest.approx(0.05 * (0.1 + 0.9 * 2 / 6))


def test_a_re_run_tells_nothing_twice(daemon_in, configured):
    """In a re-run recorded violations are corrected again, without a report."""
    options = {"route": "item", "optimizer": "sgd"}
    configuration = configured(TASK, epochs=1, batch_size=8, task_options=options)
    daemon = daemon_in("rerun", 1)
    daemon.exit_after_step = 4
    daemon.train_here(configuration)
    daemon.train_here(configuration)

    steps = [report.step for report in daemon.of(m.LrViolationDetected)]
    assert steps == sorted(set(steps))


def test_without_guards_rates_are_written_all_the_same(trained, configured, daemon_in):
    """Nothing is compared, counted or reported, but the rates still hold."""
    daemon = daemon_in("unguarded", EPOCHS)
    rate = {"base_lr": 0.05, "warmup_epochs": 1, "enable_runtime_guards": False}
    daemon.train_here(
        configured(TASK, epochs=EPOCHS, batch_size=8, task_options={"route": "replace_list"}, learning_rate=rate)
    )

    assert daemon.files("end")[MODEL_PIECE] == trained("none")[0]
    assert not daemon.of(m.LrViolationDetected)
