"""The library logs the run's notable actions, and a log that hangs delays nothing."""

from __future__ import annotations

import logging
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.library.small import CONFIG, data, network
from tests.library.test_detection import EPOCHS, poisoned, train
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.messages.sentences.text import sentence
from tolariad.daemon.said import Saying
from tolariad.library import notices


def test_a_skipped_batch_is_a_warning_of_the_run(tmp_path, caplog):
    """One warning for each action, with the event's sentence."""
    # On a busy machine an overrun of a budget would be said too.
    train(tmp_path / "run", poisoned(float("nan")), budgets={"act": False})
    skips = of(events_of(tmp_path / "run"), m.StepSkipped)
    said = [record for record in caplog.records if record.name == "tolariad.run"]

    assert len(skips) == EPOCHS
    assert [record.getMessage() for record in said] == [sentence(one) for one in skips]
    assert {record.levelno for record in said} == {logging.WARNING}


def test_a_start_says_its_notes_and_a_re_run_when_it_begins_and_ends(tmp_path, caplog):
    """A key that cannot do what it says, the steps that are run again, and whether they are the same."""
    rates = {"warmup_epochs": EPOCHS + 2}

    def die(step):
        if step == 5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(tmp_path / "run", data(), die, learning_rate=rates)
    caplog.clear()
    train(tmp_path / "run", data(), learning_rate=rates)
    warmup, begun, ended, *_ = [one.getMessage() for one in caplog.records if one.name == "tolariad.run"]

    assert warmup.startswith(f"a warm-up of {EPOCHS + 2} epochs does not fit into a run of {EPOCHS} epochs")
    assert begun == "Steps 1 to 4 are being run again from c000001."
    assert ended == "Re-run finished: 4 of 4 re-run steps equal the journal, bit for bit."


def test_a_resume_with_batches_of_another_size_is_said(tmp_path, caplog):
    """The data are the same; the run goes on from its place, and an epoch has other steps from then on."""

    def start(batch_size, stop_at=None):
        tolaria = Tolaria(CONFIG, run_dir=tmp_path / "run")
        task = type("Stops", (), {"on_step_end": lambda self, model, step: step == stop_at and tolaria.stop()})()
        caplog.clear()
        result = tolaria.train(network(), DataLoader(data(), batch_size), None, 2, task=task)
        return result.phase, [one for one in caplog.messages if "An epoch had" in one]

    assert start(12, 3) == ("stopped", [])
    assert start(12, 5) == ("stopped", [])
    phase, (said,) = start(24)
    assert phase == "completed"
    assert "4 steps an epoch" in said
    assert said.endswith("An epoch had 8 steps before.")


def test_what_comes_at_every_step_is_said_once_and_then_counted():
    """A loop that sets a rate at every step is corrected at every step. The command names the run."""
    said: list[str] = []
    saying = Saying(said.append, "/runs/a b")
    saying.tell((step, m.LrViolationDetected(group="g", what="the rate was changed", step=step)) for step in range(30))
    saying.end()

    first, *counts = said
    assert "Corrected" in first
    assert [one.partition(" more")[0] for one in counts] == ["9", "20"]
    assert counts[-1].endswith("`tolaria events '/runs/a b' -t LrViolationDetected` lists them.")


def test_a_run_whose_batches_are_all_skipped_logs_a_few_lines(tmp_path, caplog):
    """Every value is NaN, and nothing may be gone back for. The journal has each of them."""
    inputs, targets = data().tensors
    sick = TensorDataset(torch.full_like(inputs, float("nan")), targets)
    train(tmp_path / "run", sick, detect={"rollback": False}, budgets={"act": False})
    skips = of(events_of(tmp_path / "run"), m.StepSkipped)
    said = [one.getMessage() for one in caplog.records if one.name == "tolariad.run"]
    counts = [int(one.partition(" more ")[0]) for one in said if " more skipped batches, " in one]

    assert len(skips) > 20
    assert said[0] == sentence(skips[0])
    assert len(said) <= 8
    assert sum(counts) == len(skips) - 1
    assert f"`tolaria events {tmp_path / 'run'} -t StepSkipped`" in said[-1]


def test_a_log_that_hangs_holds_up_neither_training_nor_its_end(tmp_path, monkeypatch):
    """The line waits in a separate thread."""
    hung, released = threading.Event(), threading.Event()

    class Hanging(logging.Handler):
        def emit(self, record):
            hung.set()
            released.wait(60)

    handler = Hanging()
    monkeypatch.setattr(notices, "_CLOSE_S", 0.1)
    logging.getLogger("tolariad.run").addHandler(handler)
    begun = time.monotonic()
    try:
        assert train(tmp_path / "run", poisoned(float("nan"))).phase == "completed"
    finally:
        released.set()
        logging.getLogger("tolariad.run").removeHandler(handler)

    assert hung.is_set()
    assert time.monotonic() - begun < 55
