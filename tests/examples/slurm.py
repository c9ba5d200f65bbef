"""A Slurm of the tests' own: controller and one node on this machine, with ports, keys and folders of their own.

Nothing of an installed Slurm is touched, and no service manager is needed. Jobs run as the user of the tests.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.house.tree import ROOT
from tests.waiting import wait_for

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue")
INSTALL = "apt-get install slurm-wlm"
JOB = ROOT / "examples" / "slurm" / "job.sh"
# The commands that are installed beside this interpreter, whichever environment it is of.
COMMANDS = Path(sys.executable).parent
PATIENCE_S = 180.0
CONFIGURATION = """\
ClusterName=tolaria
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
# Keys of munge are a matter of the whole machine.
AuthType=auth/none
CredType=cred/none
# A job that is queued again waits for the end of its former credentials.
AuthInfo=cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
# Signals of a job reach every process below its steps, whatever their sessions.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
MpiDefault=none
ReturnToService=2
KillWait=60
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
# A job in `urgent` preempts those in `p`, which are queued again.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=p Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes={host} MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


def missing() -> str:
    """Return what is not installed, and how to install it; empty if everything is."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed: {INSTALL}" if absent else ""


class Slurm:
    """A running controller and node. `folder` must be short and new. Use it in a `with` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = [_free_port() for _ in range(2)]
        given = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser(), "cores": os.cpu_count()}
        text = CONFIGURATION.format(folder=folder, controller=ports[0], node=ports[1], **given)
        (folder / "slurm.conf").write_text(text)
        # Nothing here asks for control groups, and newer versions refuse a machine that mounts both kinds of them.
        # Older ones do not know the word, and look for a plugin of that name.
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n" if _version() >= (23, 11) else "")
        for name in ("state", "spool", "x"):
            (folder / name).mkdir(mode=0o700)
        own = {"SLURM_CONF": str(folder / "slurm.conf"), "XDG_RUNTIME_DIR": str(folder / "x")}
        self.environment = {**os.environ, **own, "PATH": f"{COMMANDS}:{os.environ['PATH']}"}
        self._undo = ExitStack()

    def __enter__(self) -> Slurm:
        try:
            for name in ("slurmctld", "slurmd"):
                log = self._undo.enter_context((self.folder / f"{name}.out").open("wb"))
                command = [name, "-D", "-f", self.folder / "slurm.conf"]
                self._undo.callback(_end, subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))
            wait_for(lambda: "idle" in self.call("sinfo", "-h", "-o", "%T", check=False), "an idle node")
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._undo:
            for job in self.call("squeue", "-h", "-o", "%i").split():
                self.call("scancel", "--full", "--signal=KILL", job, check=False)
                self.call("scancel", job, check=False)
            wait_for(lambda: not self.call("squeue", "-h"), "the end of all jobs")

    def call(self, *words: object, check: bool = True, **environment: str) -> str:
        """Run one of Slurm's programs. Return what it printed."""
        command = [str(word) for word in words]
        done = subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, timeout=60, cwd=self.folder
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, *options: str, config: Path, run: Path) -> str:
        """Submit the example as its first line says. Return the job's id."""
        given = {"CONFIG": str(config), "RUN": str(run)}
        return self.call("sbatch", "--parsable", f"--output={self.folder}/%j.out", *options, JOB, **given)

    def show(self, job: str, key: str) -> str:
        """Return one field of a job."""
        fields = self.call("scontrol", "show", "job", job, "--oneliner").split()
        return next(one.partition("=")[2] for one in fields if one.startswith(f"{key}="))

    def until(self, job: str, condition: Callable[[], object]) -> None:
        """Wait until `condition` holds. If it never does, the failure shows the output of the job."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"job {job} is {self.show(job, 'JobState')}:\n{self.said(job)[-3000:]}"
            # A journal with thousands of steps is read at each look.
            time.sleep(0.5)

    def ends(self, job: str, state: str) -> None:
        """Wait until the job has ended in this state."""
        self.until(job, lambda: self.show(job, "JobState") == state)

    def said(self, job: str) -> str:
        """Return the output of all starts of a job."""
        file = self.folder / f"{job}.out"
        return file.read_text() if file.exists() else ""


def _version() -> tuple[int, ...]:
    said = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True, timeout=60).stdout
    return tuple(int(one) for one in said.split()[-1].split(".")[:2])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
