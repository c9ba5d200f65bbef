"""Another end of the training by the control socket survives the daemon; a complete run continues with more epochs."""

from __future__ import annotations

import re

import pytest

from tests.daemon.harness import SETS, CallFailed, of_type
from tests.recorded import events_of
from tolariad.core import messages as m

SET = f"--set {SETS[0]}"


def test_a_new_end_outlives_kill_9(start, run_dir):
    """Ordered, killed, started again with the configuration as it was: the run ends there."""
    daemon = start(environ={"FAKE_TRAINER": "crawl@4"})
    daemon.until(lambda status: status["step"] >= 4)
    answer = daemon.call("Extend", epochs=4, steps=None, id="longer")
    assert daemon.call("Extend", epochs=4, id="longer") == answer
    with pytest.raises(CallFailed, match=r"Refused.*step 2 has passed: the run is in epoch [1-3], at step"):
        daemon.call("Extend", steps=2)
    with pytest.raises(CallFailed, match=r"InvalidParameter.*'epochs'"):
        daemon.call("Extend", epochs=4, steps=9)
    status = daemon.status()
    assert (status["epochs"], status["steps_total"]) == (4, 40)
    daemon.kill()

    again = start()
    assert again.wait() == 0, again.stderr
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 41))
    assert len(of_type(run_dir, m.EndOrdered)) == 1
    assert start().wait() == 0
    assert [one.epochs for one in of_type(run_dir, m.RunCompleted)] == [4]


def test_a_complete_run_goes_on_with_more_epochs(start, run_dir):
    """Without a flag, as an event, and it says so; fewer epochs, or another key beside them, are refused as before."""
    assert start(epochs=2, task="digits").wait() == 0
    before = events_of(run_dir)
    fewer = start(epochs=1, task="digits")
    assert fewer.wait() == 78
    assert "epochs: 2 in the run, 1 now (the run is at epoch 2, step 20)" in fewer.stderr
    other = start(epochs=3, task="digits", sets=[*SETS, "learning_rate.base_lr=0.5"])
    assert other.wait() == 78
    assert "learning_rate.base_lr: 0.003 in the run, 0.5 now\n" in other.stderr
    assert "  epochs" not in other.stderr
    assert events_of(run_dir) == before

    more = start(epochs=3)
    assert more.wait() == 0, more.stderr
    assert "the run was complete after epoch 2, step 20, and goes on to epoch 3" in more.stderr
    assert [one.keys for one in of_type(run_dir, m.ConfigChanged)] == [("epochs",)]
    assert [one.epochs for one in of_type(run_dir, m.RunCompleted)] == [2, 3]
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 31))


def test_more_epochs_that_another_end_cuts_short_are_refused_with_the_command(start, run_dir):
    """`stop.epochs` still ends the run here: the command takes it away. A later `stop.epochs` alone goes on."""
    assert start(epochs=2, task="digits", sets=[*SETS, "stop.epochs=1"]).wait() == 0
    cut = start(epochs=3)
    assert cut.wait() == 78
    command = f"tolariad run --epochs 3 {SET} --set=stop.epochs=null --dir {run_dir}"
    assert f"to go on to epoch 3: {command}\n" in cut.stderr

    more = start(sets=[*SETS, "stop.epochs=2"])
    assert more.wait() == 0, more.stderr
    assert "the run was complete after epoch 1, step 10, and goes on to epoch 2" in more.stderr
    assert [one.keys for one in of_type(run_dir, m.ConfigChanged)] == [("stop.epochs",)]
    assert [one.epochs for one in of_type(run_dir, m.RunCompleted)] == [1, 2]


def test_a_run_that_is_not_complete_takes_another_end_at_a_start(start, run_dir):
    """Without a flag, recorded and said; an end that has passed is refused with its place."""
    daemon = start(environ={"FAKE_TRAINER": "crawl@14"})
    daemon.until(lambda status: status["step"] >= 14)
    daemon.kill()
    passed = start(epochs=1)
    assert passed.wait() == 78
    # How far it comes before it is killed depends on the machine.
    assert re.search(r"epochs: 3 in the run, 1 now \(the run is at epoch [23], step [12]", passed.stderr)
    assert f"to end the run here: tolariad run --epochs 1 {SET} --dir {run_dir} --accept-config\n" in passed.stderr

    longer = start(epochs=5)
    assert longer.wait() == 0, longer.stderr
    assert re.search("the run is at epoch [23], step [12]", longer.stderr)
    assert "and goes on to epoch 5" in longer.stderr
    assert [one.keys for one in of_type(run_dir, m.ConfigChanged)] == [("epochs",)]
    assert [one.step for one in of_type(run_dir, m.StepCompleted)] == list(range(1, 51))
