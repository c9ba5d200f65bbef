"""`trainer: thread`: the same run, the same bits, orders and resumes, with the trainer in a thread of the daemon."""

from __future__ import annotations

import signal

import pytest

from journal import Reader
from tests.daemon.harness import SETS, ForkedDaemon, of_type
from tolariad.core import messages as m
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import RunState

EPOCHS = 6
RUN = ["rng_seed=4", "checkpoint_interval_epochs=2", "checkpoint.min_gap_s=0", "journal.sync=step"]


def start(run_dir, kind: str, *more: str) -> ForkedDaemon:
    """Start a daemon with the real digits task."""
    sets = [*SETS, *RUN, f"trainer={kind}", *more]
    return ForkedDaemon(run_dir, task="digits", epochs=EPOCHS, sets=sets, trainer_command=None)


def digest(run_dir) -> bytes:
    """Return the folded account of the training."""
    return replay_records(RunState(), Reader(run_dir / "journal").records(), strict=True).state.progress.digest


@pytest.mark.torture
def test_a_thread_trains_to_the_bits_of_a_process_through_a_pause_and_a_kill(tmp_path):
    """The run is paused, resumed, and its daemon killed within an epoch: digest and last checkpoint are equal.

    The ordinary suite has the same promise for the variant `thread` of tests/campaign/test_campaign.py.
    """
    calm = start(tmp_path / "process", "process")
    assert calm.wait() == 0, calm.stderr
    daemon = start(tmp_path / "thread", "thread")
    daemon.until(lambda status: status["step"] and status["step"] > 30, "step 30")
    daemon.call("Pause", reason="a look")
    daemon.until(lambda status: status["phase"] == "paused", "the pause")
    daemon.call("Resume")
    daemon.until(lambda status: status["step"] > 70, "step 70")
    daemon.kill()
    again = start(tmp_path / "thread", "thread")
    assert again.wait() == 0, again.stderr

    last = [of_type(tmp_path / one, m.CheckpointCommitted)[-1].pieces for one in ("process", "thread")]
    assert digest(tmp_path / "thread") == digest(tmp_path / "process")
    assert [(one.name, one.blake3) for one in last[0]] == [(one.name, one.blake3) for one in last[1]]
    assert len(of_type(tmp_path / "thread", m.RunPaused)) == 1
    assert_cores_apart(tmp_path / "thread")


def assert_cores_apart(run_dir) -> None:
    """Of several cores the daemon has some of its own; the trainer in its thread has the others."""
    recorded = of_type(run_dir, m.SchedulingRecorded)
    assert recorded
    for given in recorded:
        assert bool(given.daemon_cores) is (len(given.cores) > 1)
        assert set(given.daemon_cores).isdisjoint(given.trainer_cores), "before its own trainer, on one core"


def test_a_thread_stops_on_a_signal_and_an_exception_is_a_death_that_is_survived(tmp_path):
    """An exception of a task ends the thread, not the daemon: it is reported with its traceback, and the next thread
    continues.
    """
    (tmp_path / "raising.py").write_text(RAISING)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"tolaria: {{task: '{tmp_path}/raising.py:Raising', epochs: 400, trainer: thread, "
        "torch_threads: 1, rng_seed: 1}\n"
    )
    daemon = ForkedDaemon(tmp_path / "run", config=str(config), trainer_command=None)
    daemon.until(lambda status: status["step"] and status["step"] > 20, "steps after the exception")
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr

    (died,) = of_type(tmp_path / "run", m.TrainerDied)
    assert died.reason.value == "exception"
    assert "the seventh step" in died.output
    assert_cores_apart(tmp_path / "run")


RAISING = '''\
"""Digits, but the seventh step raises, once."""

from pathlib import Path

from tolariad.trainer.tasks.digits import Digits


class Raising(Digits):
    def on_step_end(self, model, step):
        once = Path(__file__).with_name("raised")
        if step == 7 and not once.exists():
            once.touch()
            raise RuntimeError("the seventh step")
'''
