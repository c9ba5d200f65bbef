"""The trainer as a process: killed, restored, run again, and told to exit."""

from __future__ import annotations

import signal

from tolariad.core.vocabulary.checkpoints import RerunReport
from tolariad.core.vocabulary.trainer import SetupRefusedReport


def test_a_killed_trainer_resumes_to_the_same_bits(daemon_in, configured):
    """A trainer killed in mid-epoch and restarted ends with the files of one that was never killed."""
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
    reruns = [report for report in killed.reports if isinstance(report, RerunReport)]
    assert reruns
    assert all(report.first_difference is None for report in reruns)


def test_a_task_that_cannot_be_trained_is_refused_with_78(daemon_in, configured):
    """A task that does not exist ends in a sentence and exit code 78, so nobody starts it again."""
    daemon = daemon_in("refused", 1)
    assert daemon.serve(daemon.spawn(configured("./nowhere.py:Task", epochs=1))) == 78
    (report,) = daemon.reports
    assert isinstance(report, SetupRefusedReport)
    assert "nowhere.py" in report.why
