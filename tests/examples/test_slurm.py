"""The Slurm example under plain bash, with stand-ins for srun, scontrol and the daemon: which jobs end, which are
requeued.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress

import pytest

from tests.house.tree import ROOT
from tests.waiting import wait_for
from tolariad.core.calc.run import exits
from tolariad.core.calc.settings.model import STOP_BUDGET_S

JOB = ROOT / "examples" / "slurm" / "job.sh"
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
# A run that waits for its stop, or ends at once with $CODE; it says what it was called with.
TOLARIAD = """#!/bin/bash
echo "$@" > called
trap 'sleep 0.3; echo stopped > stopped; exit 143' TERM USR1
[ -n "$CODE" ] && exit "$CODE"
echo $$ > running.new && mv running.new running
while :; do sleep 0.02; done
"""
SCONTROL = """#!/bin/bash
echo "$@" >> scontrol.said
"""


@pytest.fixture
def job(tmp_path):
    """Start the job as Slurm would, in a folder with the stand-ins on the PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {"srun": SRUN, "tolariad": TOLARIAD, "scontrol": SCONTROL}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    started = []

    def start(code: str = "") -> subprocess.Popen[str]:
        environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "CODE": code}
        environ |= {"CONFIG": "my.yaml", "RUN": "runs/my"}
        started.append(
            subprocess.Popen(["bash", JOB], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, start_new_session=True)
        )
        return started[-1]

    yield start
    for one in started:
        # A run that lives on would hold the pipe open.
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.communicate()


def said(folder) -> str:
    """Return the arguments of scontrol."""
    file = folder / "scontrol.said"
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize(
    ("number", "to_script", "told"),
    [(signal.SIGUSR1, False, "requeue 7\n"), (signal.SIGTERM, True, ""), (signal.SIGTERM, False, "requeue 7\n")],
    ids=["time is up", "cancelled", "the step alone"],
)
def test_a_signal_stops_the_run_in_order(job, tmp_path, number, to_script, told):
    """The run gets the signal of its step. The script waits for it, and has its exit code. The script of a job that is
    cancelled is signalled too, and does not queue it again.
    """
    started = job()
    wait_for((tmp_path / "running").exists)
    if to_script:
        os.kill(started.pid, number)
    os.kill(int((tmp_path / "running").read_text()), number)

    assert started.wait(60) == 143
    assert (tmp_path / "stopped").read_text() == "stopped\n"
    assert (tmp_path / "called").read_text() == "run my.yaml --dir runs/my --set signals.USR1=stop\n"
    assert said(tmp_path) == told


@pytest.mark.parametrize(
    ("code", "told"),
    [
        *((code, "") for code in (0, 2, exits.EXIT_DAMAGED, exits.EXIT_FAILED, exits.EXIT_IO, exits.EXIT_CONFIG)),
        (exits.EXIT_INTERRUPTED, ""),
        (exits.EXIT_TRY_AGAIN, "requeue 7\n"),
        (exits.EXIT_TERMINATED, "requeue 7\n"),
    ],
)
def test_an_end_that_may_pass_is_queued_again_and_no_other(job, tmp_path, code, told):
    """The exit code of the run is the job's."""
    assert job(str(code)).wait(60) == code
    assert said(tmp_path) == told


def test_the_warning_comes_earlier_than_the_daemon_needs():
    """The step is told with more time left than a stop may take, and the job may be queued again at all."""
    text = JOB.read_text(encoding="utf-8")
    seconds = int(re.search(r"^#SBATCH --signal=USR1@([0-9]+)$", text, re.MULTILINE)[1])

    assert seconds >= STOP_BUDGET_S + 15
    assert "\n#SBATCH --requeue\n" in text
