"""The trainer's process: killed, restored, re-run, and told to exit."""

from __future__ import annotations

import argparse
import os
import runpy
import select
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import within
from tolariad.channel import Page, Reports, TrainerEnd, channel_pair
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.process.lifelines import lock_run


@pytest.mark.torture
def test_a_killed_trainer_resumes_to_the_same_bits(daemon_in, configured):
    """A trainer killed within an epoch and restarted ends with the files of an undisturbed one.

    The ordinary suite has the same promise with a daemon, at every failpoint: tests/campaign/test_campaign.py.
    """
    digits = configured("digits", epochs=3)
    plain = daemon_in("plain", 3)
    assert plain.serve(plain.spawn(digits)) == 0
    killed = daemon_in("killed", 3)
    assert killed.serve(killed.spawn(digits, "step:40")) == -signal.SIGKILL
    assert killed.last_step in range(38, 41)
    assert killed.serve(killed.spawn(digits, "gate:25")) == -signal.SIGKILL
    assert killed.serve(killed.spawn(digits)) == 0

    assert killed.files("end") == plain.files("end")
    assert [r.metrics for r in killed.validations.values()] == [r.metrics for r in plain.validations.values()]
    assert killed.reruns()


def test_a_mistake_in_a_task_is_refused_with_its_traceback(daemon_in, configured, tmp_path):
    """A file that cannot be imported does not lead to five starts."""
    task = tmp_path / "broken.py"
    task.write_text("import no_such_module\n")
    daemon = daemon_in("broken", 1)
    assert daemon.serve(daemon.spawn(configured(f"{task}:Task", epochs=1))) == 78
    (report,) = daemon.reports
    assert "ModuleNotFoundError: No module named 'no_such_module'" in report.why
    assert "broken.py" in report.traceback


def test_an_exception_in_training_is_reported_with_its_step(daemon_in, configured, tmp_path):
    """The traceback is the last report, and the exit code allows a restart."""
    task = tmp_path / "failing.py"
    task.write_text(
        "from tolariad.trainer.tasks.digits import Digits\n"
        "class Failing(Digits):\n"
        "    def on_step_end(self, model, step):\n"
        "        if step == 5: raise RuntimeError('five')\n"
    )
    daemon = daemon_in("failing", 1)
    assert daemon.serve(daemon.spawn(configured(f"{task}:Failing", epochs=1))) == 1
    assert daemon.reports[-1].step == 5
    report = daemon.reports[-1]
    assert "RuntimeError: five" in report.traceback
    assert (report.kind, report.place, report.text) == ("builtins.RuntimeError", f"{task}:4", "RuntimeError: five")


@pytest.mark.parametrize("mistake", ["torch.zeros(2) @ torch.zeros(3)", "json.loads('{')", "Digits.nothing", "1 / 0"])
def test_an_exception_is_at_the_line_of_the_task_that_led_to_it(tmp_path, mistake):
    """Many mistakes end in the same line of torch or of the standard library. The text has all its last lines."""
    from tolariad.trainer.process.lifecycle import see_through

    task = tmp_path / "own.py"
    task.write_text(f"import json\nimport torch\nfrom tolariad.trainer.tasks.digits import Digits\n{mistake}\n")

    def raising():
        error = None
        try:
            runpy.run_path(str(task))
        except Exception as raised:
            error = raised
        error.add_note("look at the shapes")

        class Training:
            step = 7

            def run(self):
                raise error

        return Training()

    daemon, theirs = channel_pair(1)
    end = TrainerEnd(theirs, daemon.page)
    ending = see_through(raising, end)
    (report,) = Reports(daemon, 1).drain(10)
    assert (report.step, report.place) == (7, f"{task}:4")
    assert report.kind.endswith(type(ending.error).__name__)
    assert report.text.endswith(f"{ending.error}\nlook at the shapes")
    end.close()
    daemon.close()


def test_a_trainer_whose_daemon_is_gone_exits_without_another_update(daemon_in, configured):
    """End-of-file on the channel is an order to exit: code 0, and no step was made after it."""
    daemon = daemon_in("orphan", 50, checkpoint_every_epoch=False)
    process = daemon.spawn(configured("digits", epochs=50))
    while daemon.last_step < 20:
        select.select([daemon.end], [], [], 0.02)
        daemon.pump()
    step = daemon.end.page.heartbeat.step
    page = Page.attach(os.dup(daemon.end.page.descriptor))
    daemon.end.close()
    assert process.wait(timeout=30) == 0
    # It may still make the updates that the page allowed when the channel was closed.
    assert page.heartbeat.step - step <= 3
    page.close()


def test_workers_die_with_the_trainer_and_leave_its_lock(daemon_in, configured):
    """Killed while two workers load data: both end at once, and the next trainer gets the lock. Neither they nor the
    trainer die of warnings that a scheduler sends to every process.
    """
    task = Path(__file__).with_name("tasks") / "augmenting.py"
    configuration = configured(f"{task}:Augmenting", epochs=200, batch_size=8, workers=2)
    daemon = daemon_in("workers", 200, checkpoint_every_epoch=False)
    process = daemon.spawn(configuration)
    while daemon.last_step < 3:
        select.select([daemon.end], [], [], 0.02)
        daemon.pump()
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    # Between two epochs, those of the epoch before may not have ended yet.
    assert len(children) >= 2
    for pid in (process.pid, *children):
        with suppress(ProcessLookupError):
            for one in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
                os.kill(pid, one)
    warned_at = daemon.last_step
    while daemon.last_step < warned_at + 20:
        select.select([daemon.end], [], [], 0.02)
        daemon.pump()
    assert process.poll() is None
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.kill()
    process.wait()
    # torch's own watchdog looks every 5 s.
    ended = within(4.5, lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in children))
    assert ended, "a worker outlives its trainer"
    os.close(lock_run(daemon.run_dir, lambda: None))


@pytest.mark.parametrize("error", [RuntimeError, ValueError, SetupRefused])
def test_what_a_task_raises_is_reported_whatever_it_says(tmp_path, monkeypatch, capsys, error):
    """Half a surrogate pair, or a megabyte of text, must not cost the report."""
    from tolariad.trainer import __main__ as program
    from tolariad.trainer.process import lifecycle

    def broken(*_, **__):
        raise error("no file \udce4" + "x" * 1_000_000)

    monkeypatch.setattr(lifecycle, "built", broken)
    daemon, theirs = channel_pair(1)
    end = TrainerEnd(theirs, daemon.page)
    (tmp_path / "config").touch()
    program._train(
        argparse.Namespace(config_json=tmp_path / "config", run=tmp_path, run_id="", torch_threads=1, ring_fd=None),
        end,
        "",
        None,
    )
    (report,) = Reports(daemon, 1).drain(10)
    capsys.readouterr()

    text = report.why if error is not RuntimeError else report.traceback
    assert len(text) < 20_000
    assert "\\udce4" in text or text.endswith("xxx\n")
    end.close()
    daemon.close()
