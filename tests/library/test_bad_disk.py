"""The disk fails while a checkpoint is written: the end of a run, and its first checkpoint, are not lost."""

from __future__ import annotations

import threading

import pytest

from tests.library.small import EPOCHS, STEPS_PER_EPOCH, bits, network, train
from tests.recorded import events_of, of, pieces
from tests.waiting import wait_for
from tolariad import failpoints
from tolariad.core import messages as m
from tolariad.library.failed import RunFailed

# The trainer writes each checkpoint three times before it gives it up.
WRITES = 3


def is_writing() -> bool:
    return any(thread.name == "checkpoint-writer" for thread in threading.enumerate())


def failing(monkeypatch, point: str, times: int, error: str = "EIO"):
    """Return a hook that arms the point at the last step, for so many passes; and arm nothing before."""
    rules = ",".join(f"{point}:{n}!{error}" for n in range(1, times + 1))

    def hook(step):
        if step == EPOCHS * STEPS_PER_EPOCH:
            wait_for(lambda: not is_writing(), "the end of an earlier checkpoint")
            monkeypatch.setattr(failpoints, "armed", failpoints._parse(rules))

    return hook


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Return the bits of a run that nothing disturbs, and the files of its last checkpoint."""
    model, run_dir = network(), tmp_path_factory.mktemp("calm") / "run"
    train(run_dir, model=model)
    return bits(model), pieces(run_dir)


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("point", ["checkpoint_file", "manifest"])
@pytest.mark.parametrize("times", [1, WRITES])
def test_a_disk_that_fails_at_the_end_costs_nothing(tmp_path, calm, monkeypatch, point, times, error):
    """Once: the checkpoint is written again. Three times: the run orders another one. Its state is that of the end."""
    model = network()
    result = train(tmp_path / "run", failing(monkeypatch, point, times, error), model=model)
    events = events_of(tmp_path / "run")
    ends = [one.id for one in of(events, m.CheckpointBegun) if one.reason is m.CheckpointReason.END]

    assert result.phase == "completed"
    assert len(ends) == len(of(events, m.CheckpointAborted)) + 1 == (1 if times < WRITES else 2)
    assert of(events, m.RunCompleted)[0].checkpoint == ends[-1]
    assert {folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()}.isdisjoint(ends[:-1])
    assert (bits(model), pieces(tmp_path / "run")) == calm


def test_a_disk_that_goes_on_failing_ends_the_call_and_the_next_one_makes_the_end_again(tmp_path, calm, monkeypatch):
    """The call raises. Called again, with a disk that works, the run ends with the same bits."""
    with pytest.raises(RunFailed, match="Input/output error"):
        train(tmp_path / "run", failing(monkeypatch, "checkpoint_file", 100))
    monkeypatch.setattr(failpoints, "armed", {})
    model = network()

    assert train(tmp_path / "run", model=model).phase == "completed"
    assert bits(model) == calm[0]


def test_the_first_checkpoint_is_written_again_too(tmp_path, calm, monkeypatch):
    """Its disk fails before the first step."""
    monkeypatch.setattr(failpoints, "armed", failpoints._parse("checkpoint_file:1!EIO,manifest:1!EIO"))
    model = network()
    result = train(tmp_path / "run", model=model)

    assert result.phase == "completed"
    assert of(events_of(tmp_path / "run"), m.CheckpointAborted) == []
    assert bits(model) == calm[0]
