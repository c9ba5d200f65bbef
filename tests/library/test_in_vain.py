"""Runs whose loss jumps for good: two rollbacks do not help, so they go on, or halt if a value is not finite."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from tests.library.small import loaders, made
from tests.library.test_detection import plain, train_long
from tests.recorded import events_of, of
from tolariad.cli.tolaria import tolaria
from tolariad.core import messages as m
from tolariad.core.calc.detection.comparison import Judgement
from tolariad.core.messages.sentences.text import sentence
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
FAINT = {"epochs": 64, "budgets": {"act": False}}


@pytest.fixture(scope="module")
def faint(tmp_path_factory):
    """Return the events of a run whose loss jumps to twenty times its value and stays there."""
    model = nn.Sequential(plain(), Fainter(first=FAINT_AT))
    return train_long(tmp_path_factory.mktemp("faint") / "run", model=model, **FAINT)


def test_a_loss_that_jumps_and_stays_after_two_rollbacks_goes_on_in_conservative_mode(faint):
    """The kept weights do better, since they answer without the fault; so the run goes back twice, in vain. Then it
    trains on, keeps the state, and says how to go back there.
    """
    found = [one for one in of(faint, m.InstabilityDetected) if one.insured]
    backs, (kept,) = of(faint, m.RolledBack), of(faint, m.HeldOnTo)
    (entered,) = of(faint, m.ConservativeModeEntered)

    assert found[0].finding.value == "sustained"
    assert [one.level for one in found] == [None] * len(found)
    assert len(backs) == 2
    assert {one.checkpoint for one in backs} == {kept.checkpoint}
    assert all(one.step < found[0].step for one in backs)
    assert {one.judgement for one in of(faint, m.StatesCompared)} == {Judgement.WEIGHTS}
    assert "2 returns did not help" in kept.why
    assert entered.why == f"{kept.why}; the run goes on"
    assert f"--to {kept.checkpoint}" in sentence(kept)
    assert faint.index(kept) > max(map(faint.index, backs))
    assert of(faint, m.StepCompleted)[-1].step > found[-1].step + 20
    assert not of(faint, m.RunFrozen)
    assert kept.checkpoint not in {one.checkpoint for one in of(faint, m.PinReleased)}
    assert len(of(faint, m.RunCompleted)) == 1


def test_a_loss_that_jumps_and_stays_halts_the_run_if_detect_halt_says_so(tmp_path):
    """With `detect.halt: true` the run halts the third time, with the reason. The program's model is the last healthy
    one then, and so is an exported one. Called again the run continues from where it was.
    """
    same, model = {**FAINT, "detect": {"halt": True}}, nn.Sequential(plain(), Fainter(first=FAINT_AT))
    why = r"sustained: loss .*; 2 returns did not help; the run is frozen.*the last healthy one, c\d+ of step \d+"
    with pytest.raises(RunFailed, match=why):
        train_long(tmp_path / "run", model=model, **same)
    halted = events_of(tmp_path / "run")
    pinned = of(halted, m.StatePinned)[0]
    kept = load_file(tmp_path / "run" / "checkpoints" / pinned.checkpoint / "model-00000.safetensors")
    words = ["export-weights", str(tmp_path / "run"), "-o", str(tmp_path / "w.safetensors")]
    assert CliRunner().invoke(tolaria, words).exit_code == 0
    exported = load_file(tmp_path / "w.safetensors")

    assert pinned.step < FAINT_AT < of(halted, m.StepCompleted)[-1].step
    assert int(model[1].passes) == pinned.step
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(tensor, exported[name]) for name, tensor in model.state_dict().items())
    events = train_long(tmp_path / "run", model=nn.Sequential(plain(), Fainter(first=FAINT_AT)), **same)

    assert len(of(halted, m.RunFrozen)) == len(of(events, m.RunFrozen)) == 1
    assert len(of(halted, m.RolledBack)) == len(of(events, m.RolledBack)) == 2
    assert of(events, m.StepCompleted)[-1].step > of(halted, m.StepCompleted)[-1].step


class Wilder(Fainter):
    """From that pass on every answer is wrong with high confidence; `times`: how high, or not a number."""

    def __init__(self, first: int, times: float) -> None:
        super().__init__(first)
        self.times = times

    def forward(self, inputs):
        self.passes += self.training
        return inputs if int(self.passes) < self.first else inputs * self.times


def test_a_run_whose_values_are_never_finite_again_halts_and_says_so(tmp_path):
    """It goes back twice; the third time `train` raises. Called again, it raises again: an update with such values
    would destroy the model.
    """
    for frozen in (1, 2):
        model = nn.Sequential(plain(), Wilder(76, float("nan")))
        with pytest.raises(RunFailed, match=r"not finite after 2 returns; the run is frozen\. Call `train` again"):
            train_long(tmp_path / "run", model=model, epochs=14, rollback={"skip_batches": False})
        halted = events_of(tmp_path / "run")
        assert len(of(halted, m.RunFrozen)) == frozen
        assert len(of(halted, m.RolledBack)) == 2
        assert all(one.step < 76 for one in of(halted, m.RolledBack))


def test_after_a_halt_a_loop_of_ones_own_has_the_last_healthy_model(tmp_path):
    """Its own model, as after `train`: the error says of which step, and nothing of it is NaN."""
    model = nn.Sequential(plain(), Wilder(76, float("nan")))
    loader = loaders()[0]
    given = made(tmp_path / "run", rollback={"skip_batches": False})
    run = given.run(model, torch.optim.SGD(model.parameters(), 0.05), loader)

    def trained():
        for _ in run.epochs(14):
            for inputs, labels in run.batches():
                run.step(functional.cross_entropy(model(inputs), labels))

    with pytest.raises(RunFailed, match=r"The model is the last healthy one, c\d+ of step \d+") as halted:
        trained()
    id_ = re.search(r"one, (c\d+) of", str(halted.value))[1]
    kept = load_file(tmp_path / "run" / "checkpoints" / id_ / "model-00000.safetensors")

    assert int(model[1].passes) < 76
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
    assert all(tensor.isfinite().all() for tensor in model.parameters())


def test_an_explosion_that_comes_again_and_again_halts_nothing(tmp_path):
    """The same answers, finite: the run goes at most twice to one state, completes, and leaves nothing that is watched.

    Which states there are depends on when checkpoints are written.
    """
    model = nn.Sequential(plain(), Wilder(76, -1000.0))
    events = train_long(tmp_path / "run", model=model, epochs=34, rollback={"skip_batches": False})
    backs = Counter(one.checkpoint for one in of(events, m.RolledBack))
    found = [one for one in of(events, m.InstabilityDetected) if one.insured]
    settled = {one.checkpoint for one in of(events, m.PinReleased, m.HeldOnTo)}

    assert found[0].finding.value == "explosion"
    assert 1 <= max(backs.values()) <= 2
    assert not of(events, m.RunFrozen)
    assert {one.checkpoint for one in of(events, m.StatePinned)} == settled
    assert len(of(events, m.RunCompleted)) == 1
