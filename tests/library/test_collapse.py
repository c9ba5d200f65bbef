"""An accuracy that collapses twice in a row causes a rollback, and the result equals that of an undisturbed run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.library.small import STEPS_PER_EPOCH, bits, loaders, made, network
from tests.recorded import events_of, findings, of
from tolariad.core import messages as m
from tolariad.core.calc.detection.comparison import Judgement

EPOCHS, FELL = 13, 6


class Lapse(nn.Module):
    """Gives wrong answers in `times` validations from the `at`-th on, of two batches each, and never again.

    `sick`, a buffer, does so from an epoch's end on: a fault of the state that no training loss shows.
    """

    def __init__(self, at: int, times: int) -> None:
        super().__init__()
        self.looked, self.lapses = 0, range(at, at + times)
        self.register_buffer("sick", torch.zeros(()))

    def forward(self, inputs):
        self.looked += not self.training
        lapses = (self.looked + 1) // 2 in self.lapses or bool(self.sick)
        return -inputs if lapses and not self.training else inputs


class Sickens:
    """A task whose model becomes sick once, before the validation of epoch FELL."""

    def __init__(self, is_due: bool) -> None:
        self.is_due = is_due

    def on_step_end(self, model, step):
        if self.is_due and step == FELL * STEPS_PER_EPOCH:
            self.is_due = False
            model[1].sick.fill_(1.0)


def train(run_dir, at=0, times=2, *, sickens=False, **config):
    """Return bits and events."""
    model = nn.Sequential(network(), Lapse(at, times))
    result = made(run_dir, **config).train(model, *loaders(), EPOCHS, task=Sickens(sickens))
    assert (result.phase, result.steps) == ("completed", EPOCHS * STEPS_PER_EPOCH)
    return bits(model), events_of(run_dir)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Return bits and events of the undisturbed run."""
    return train(tmp_path_factory.mktemp("calm") / "run")


def test_a_run_whose_accuracy_collapses_twice_goes_back_and_ends_with_the_bits_of_one_that_never_did(tmp_path, calm):
    """Two validations in a row show the fault: the kept state is compared at once, and the run goes back to it, from
    before the first of them. The second one is the cause, in one chain.
    """
    found, events = train(tmp_path / "run", sickens=True, rollback={"skip_batches": False})
    said, seen = findings(events)
    pinned, compared, raised, begun, back = (
        one
        for kind in (m.StatePinned, m.StatesCompared, m.EmergencyRaised, m.RollbackBegun, m.RolledBack)
        for one in of(events, kind)
    )
    ended = [one for one in of(events, m.ValidationFinished) if one.epoch >= FELL]
    fell = [one for one in ended if one.metrics["accuracy"] < seen.limit]

    assert (said.epoch, said.insured) == (FELL, False)
    assert (seen.epoch, seen.signal.value, seen.insured) == (FELL + 1, "accuracy", True)
    assert seen.limit == pytest.approx(0.5 * seen.baseline)
    assert [one.epoch for one in fell][:2] == [FELL, FELL + 1]
    assert compared.judgement is Judgement.DATA
    assert back.checkpoint == pinned.checkpoint
    assert back.step <= (FELL - 1) * STEPS_PER_EPOCH
    # Nothing was left to watch: the comparison came after the next batches.
    assert compared.step <= seen.step + 40
    assert raised.root == begun.root == back.root == compared.root == fell[1].root
    assert found == calm[0]
    assert findings(calm[1]) == []


def test_a_collapse_that_only_the_validation_made_is_compared_and_left_alone(tmp_path, calm):
    """Two validations were wrong, and the network is sound: the comparison shows it, and the run ends as ever."""
    found, events = train(tmp_path / "run", FELL)

    assert len(of(events, m.StatesCompared)) == len(of(events, m.PinReleased)) == 1
    assert not of(events, m.RollbackBegun)
    assert found == calm[0]


def test_a_collapse_that_the_next_validation_does_not_show_is_only_recorded(tmp_path, calm):
    """After a single collapse the run continues unchanged."""
    found, events = train(tmp_path / "run", FELL, times=1)

    assert [(one.finding.value, one.level) for one in findings(events)] == [("collapse", None)]
    assert of(events, m.RollbackBegun, m.StatePinned) == []
    assert found == calm[0]


def test_where_the_run_is_not_to_go_back_a_collapse_is_recorded(tmp_path):
    """`detect.rollback: false`."""
    _, events = train(tmp_path / "run", FELL, detect={"rollback": False})

    assert [(one.finding.value, one.level) for one in findings(events)] == [("collapse", None)] * 2
    assert of(events, m.RollbackBegun, m.StatePinned) == []
