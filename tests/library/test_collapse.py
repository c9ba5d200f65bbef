"""An accuracy that collapses twice in a row causes a rollback, and the result equals that of an undisturbed run."""

from __future__ import annotations

import pytest
from torch import nn

from tests.library.small import STEPS_PER_EPOCH, bits, loaders, made, network
from tests.recorded import events_of, findings, of
from tolariad.core import messages as m

EPOCHS, FELL = 8, 6


class Lapse(nn.Module):
    """Gives wrong answers in `times` validations from the `at`-th on, of two batches each, and never again."""

    def __init__(self, at: int, times: int) -> None:
        super().__init__()
        self.looked, self.lapses = 0, range(at, at + times)

    def forward(self, inputs):
        self.looked += not self.training
        return -inputs if (self.looked + 1) // 2 in self.lapses and not self.training else inputs


def train(run_dir, at=0, times=2, **config):
    """Return bits and events."""
    model = nn.Sequential(network(), Lapse(at, times))
    result = made(run_dir, **{"detect": {"rollback": True}, **config}).train(model, *loaders(), EPOCHS)
    assert (result.phase, result.steps) == ("completed", EPOCHS * STEPS_PER_EPOCH)
    return bits(model), events_of(run_dir)


def test_a_run_whose_accuracy_collapses_twice_goes_back_and_ends_with_the_bits_of_one_that_never_did(tmp_path):
    """The rollback goes to before the first of both validations; the second one is the cause, in one chain."""
    calm, plain = train(tmp_path / "calm")
    found, events = train(tmp_path / "run", FELL)
    said, seen = findings(events)
    (raised,), (begun,), (back,) = (of(events, kind) for kind in (m.EmergencyRaised, m.RollbackBegun, m.RolledBack))
    fell = [one for one in of(events, m.ValidationFinished) if one.metrics["accuracy"] < seen.limit]

    assert (said.epoch, said.level) == (FELL, None)
    assert (seen.epoch, seen.signal.value, seen.level.value) == (FELL + 1, "accuracy", "major")
    assert seen.limit == pytest.approx(0.5 * seen.baseline)
    assert [one.epoch for one in fell] == [FELL, FELL + 1]
    assert back.step <= (FELL - 1) * STEPS_PER_EPOCH
    assert raised.root == begun.root == back.root == fell[1].root
    assert found == calm
    assert findings(plain) == []


def test_a_collapse_that_the_next_validation_does_not_show_is_only_recorded(tmp_path):
    """After a single collapse the run continues unchanged."""
    calm, _ = train(tmp_path / "calm")
    found, events = train(tmp_path / "run", FELL, times=1)

    assert [(one.finding.value, one.level) for one in findings(events)] == [("collapse", None)]
    assert of(events, m.RollbackBegun) == []
    assert found == calm


def test_where_the_run_is_not_to_go_back_a_collapse_is_recorded(tmp_path):
    """`detect.rollback: false`."""
    _, events = train(tmp_path / "run", FELL, detect={"rollback": False})

    assert [(one.finding.value, one.level) for one in findings(events)] == [("collapse", None)] * 2
    assert of(events, m.RollbackBegun) == []
