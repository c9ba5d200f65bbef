"""A program that is started again on other data is refused, before anything is recorded; the trial leaves no trace."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.library.small import CONFIG, EPOCHS, bits, data, network, train
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.daemon.request import StartRefused
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.validate import Metrics


class Stopped(Exception):
    """Raised by a hook, as a crash would be."""


def unseeded():
    """Other data at each call, as `torch.randn` in a script gives."""
    inputs = torch.randn(96, 16, generator=torch.Generator().manual_seed(int(torch.seed() & 0xFFFF)))
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def begun(run_dir, inputs):
    """A run that ended with an exception in step 10."""

    class Crashing:
        def on_step_end(self, model, step):
            if step == 10:
                raise Stopped

    loader = DataLoader(inputs, batch_size=12, shuffle=True)
    with pytest.raises(Stopped):
        Tolaria(CONFIG, run_dir=run_dir).train(network(), loader, DataLoader(data(48), 24), EPOCHS, task=Crashing())


def again(run_dir, inputs, **more):
    loader = DataLoader(inputs, batch_size=12, shuffle=True)
    return Tolaria(CONFIG, run_dir=run_dir, **more).train(network(), loader, DataLoader(data(48), 24), EPOCHS)


def test_other_data_are_refused_and_nothing_is_recorded(tmp_path, caplog):
    """`accept_data=True` goes on: recorded, and said once."""
    first, second = unseeded(), unseeded()
    begun(tmp_path / "run", first)
    before = events_of(tmp_path / "run")
    with pytest.raises(StartRefused, match=r"differ in 8 of 8 .* torch\.randn: .*accept_data=True") as refused:
        again(tmp_path / "run", second)
    assert refused.value.code == 78
    assert events_of(tmp_path / "run") == before

    with caplog.at_level(logging.WARNING, logger="tolariad.run"):
        assert again(tmp_path / "run", second, accept_data=True).phase == "completed"
    events = events_of(tmp_path / "run")
    assert of(events, m.DaemonStarted)[-1].accept_data
    assert of(events, m.ExecutionContextRecorded)[-1].other_data == "the training data differ in 8 of 8 compared items"
    said = [one.getMessage() for one in caplog.records if "Other data were accepted" in one.getMessage()]
    assert len(said) == 1


def test_the_same_data_go_on_without_a_word(tmp_path):
    """In every kind of loader."""
    begun(tmp_path / "run", data())
    assert again(tmp_path / "run", data()).phase == "completed"
    contexts = of(events_of(tmp_path / "run"), m.ExecutionContextRecorded)
    assert [one.other_data for one in contexts] == ["", ""]
    assert contexts[0].environment.data == contexts[1].environment.data
    assert [one.length for one in contexts[0].environment.data] == [96, 48]


def test_the_trial_of_evaluate_changes_no_bit_of_the_training(tmp_path, monkeypatch):
    """BatchNorm, dropout and shuffling train to the same bits without it."""
    tried, plain = network(), network()
    calls = []
    monkeypatch.setattr("tolariad.trainer.loop.try_evaluate", lambda *_: calls.append(1) or Metrics({}, 0))
    train(tmp_path / "plain", model=plain)
    monkeypatch.undo()
    train(tmp_path / "tried", model=tried)
    assert calls == [1]
    assert bits(tried) == bits(plain)


def test_an_evaluation_that_fails_ends_the_run_before_its_first_step(tmp_path):
    """The exception is the cause; corrected, the same folder trains."""

    class Wrong:
        def evaluate(self, model, batch):
            return {"loss": model(batch["inputs"]).mean()}

    def started(task):
        loader = DataLoader(data(), 12)
        return Tolaria(CONFIG, run_dir=tmp_path / "run").train(
            network(), loader, DataLoader(data(48), 24), 1, task=task
        )

    with pytest.raises(SetupRefused, match=r"evaluate.* raises TypeError on the first batch") as refused:
        started(Wrong())
    assert isinstance(refused.value.__cause__, TypeError)
    result = started(None)
    assert (result.phase, result.steps) == ("completed", 8)
