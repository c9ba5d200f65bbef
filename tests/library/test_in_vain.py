"""Runs whose loss jumps for good: two rollbacks do not help, so they continue in conservative mode, or halt."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.library.test_detection import plain, train_long
from tests.recorded import events_of, of
from tolariad.core import messages as m
from tolariad.library import RunFailed


class Fainter(nn.Module):
    """From its `first` training pass on, outputs are scaled down, so that the loss is a multiple until it is learnt
    again.
    """

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        self.passes += self.training
        return inputs if int(self.passes) < self.first else inputs * 0.1


def test_a_loss_that_jumps_to_where_it_began_is_recorded_and_trained_on(tmp_path):
    """Early in the run this is recorded only; there is no rollback."""
    model = nn.Sequential(plain(), Fainter(first=84))
    events = train_long(tmp_path / "run", model=model, epochs=24)
    found = [one for one in of(events, m.InstabilityDetected) if one.asks]

    assert [(one.finding.value, one.level) for one in found] == [("rise", None)]
    assert not of(events, m.RolledBack)
    assert of(events, m.StepCompleted)[-1].step > found[-1].step + 50


FAINT_AT = 400
# A slow machine is another reason for conservative mode.
FAINT = {"epochs": 60, "budgets": {"act": False}}


@pytest.fixture(scope="module")
def faint(tmp_path_factory):
    """Return the events of a run whose loss jumps to twenty times its value and stays there."""
    model = nn.Sequential(plain(), Fainter(first=FAINT_AT))
    return train_long(tmp_path_factory.mktemp("faint") / "run", model=model, **FAINT)


def test_a_loss_that_jumps_and_stays_after_two_rollbacks_goes_on_in_conservative_mode(faint):
    """A new stage of a curriculum: the run rolls back twice, without success, and then trains on."""
    found = [one for one in of(faint, m.InstabilityDetected) if one.asks and one.finding.value == "sustained"]
    (entered,) = of(faint, m.ConservativeModeEntered)

    assert [(one.level and one.level.value, one.returns, one.goes_on) for one in found] == [
        ("major", 0, False),
        ("major", 1, False),
        (None, 2, True),
    ]
    assert len(of(faint, m.RolledBack)) == 2
    assert all(one.step < found[0].step for one in of(faint, m.RolledBack))
    assert entered.why.startswith("sustained: loss ")
    assert entered.why.endswith("2 rollbacks did not help; the run goes on")
    assert faint[entered.cause - 1] == found[-1]
    assert of(faint, m.StepCompleted)[-1].step > found[-1].step + 20
    assert of(faint, m.RunFrozen) == []
    assert len(of(faint, m.RunCompleted)) == 1


def test_a_loss_that_jumps_and_stays_halts_the_run_if_detect_halt_says_so(tmp_path):
    """With `detect.halt: true` the run halts the third time, with the reason. Called again it continues."""
    same = {**FAINT, "detect": {"halt": True}}
    with pytest.raises(RunFailed, match=r"sustained: loss .*; 2 rollbacks did not help; the run is frozen"):
        train_long(tmp_path / "run", model=nn.Sequential(plain(), Fainter(first=FAINT_AT)), **same)
    halted = events_of(tmp_path / "run")
    events = train_long(tmp_path / "run", model=nn.Sequential(plain(), Fainter(first=FAINT_AT)), **same)

    assert len(of(halted, m.RunFrozen)) == len(of(events, m.RunFrozen)) == 1
    assert len(of(halted, m.RolledBack)) == len(of(events, m.RolledBack)) == 2
    assert of(events, m.StepCompleted)[-1].step > of(halted, m.StepCompleted)[-1].step


class Wilder(Fainter):
    """From that pass on every answer is wrong with high confidence."""

    def forward(self, inputs):
        self.passes += self.training
        return inputs if int(self.passes) < self.first else inputs * -1000.0


def test_a_run_that_halts_says_so_and_goes_on_when_it_is_told_to(tmp_path):
    """If an explosion recurs after two rollbacks, `train` raises. Called again, it continues past that step."""
    same = {"epochs": 10, "rollback": {"skip_batches": False}}
    with pytest.raises(RunFailed, match=r"2 rollbacks did not help; the run is frozen\. Call `train` again"):
        train_long(tmp_path / "run", model=nn.Sequential(plain(), Wilder(first=76)), **same)
    halted = events_of(tmp_path / "run")
    events = train_long(tmp_path / "run", model=nn.Sequential(plain(), Wilder(first=76)), **same)
    after = [one for one in of(events[len(halted) :], m.InstabilityDetected) if one.asks]

    assert of(halted, m.RunFrozen)
    assert len(of(halted, m.RolledBack)) == 2
    assert len(of(events, m.RolledBack)) == len(of(halted, m.RolledBack))
    assert after[0].finding.value == "explosion"
    assert {one.level for one in after} == {None}
