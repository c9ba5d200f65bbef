"""Every end of a trainer is reported with its cause, leaves no process, and no second trainer starts beside it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.waiting import becomes_true
from tolariad.boot import boot_id
from tolariad.core import messages as m
from tolariad.supervisor import FormerTrainer, Supervisor, Timeouts, TrainerSetup
from tolariad.supervisor.hang import HangLimits
from tolariad.supervisor.process import child_environment
from tolariad.supervisor.procfs import is_running, process_stat

QUICK = Timeouts(hang=HangLimits(floor_s=0.5, unknown_s=60.0), poll_s=0.05, stacks_s=2.0, kill_s=20.0)
# On a busy machine a process may take long to die.
PATIENT = Timeouts(hang=HangLimits(floor_s=60.0, unknown_s=60.0), poll_s=0.05, stacks_s=2.0, kill_s=60.0)

# A trainer in miniature: it takes its channel as the real one does, beats once, and does what its test says.
PRELUDE = """
import argparse, faulthandler, os, signal, socket, sys, time
parser = argparse.ArgumentParser()
for name in ("--run", "--incarnation", "--channel-fd", "--page-fd", "--parent-pid", "--printed"):
    parser.add_argument(name)
args = parser.parse_args()
from tolariad.channel import Activity, Page
page = Page.attach(int(args.page_fd))
os.makedirs(args.run + "/logs", exist_ok=True)
stacks = open(args.run + "/logs/trainer.stacks", "a")
faulthandler.register(signal.SIGRTMAX, file=stacks, all_threads=True)
def beat(activity=Activity.STEP):
    page.beat(1, time.monotonic_ns(), activity)
beat(); beat()
"""


class Notes:
    """A recorder that keeps its inputs."""

    def __init__(self) -> None:
        self.told = []
        self.ends = {}

    def attach(self, end, spawned):
        self.ends[spawned.incarnation] = end
        self.told.append(spawned)

    def submit(self, given):
        self.told.append(given)

    async def wait_for(self, kind):
        assert await becomes_true(lambda: any(isinstance(one, kind) for one in self.told)), self.told
        return next(one for one in self.told if isinstance(one, kind))


def has_ended(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is None or stat.state in "ZX"


class Sink:
    """Collects the output."""

    def __init__(self) -> None:
        self.text = bytearray()

    def __call__(self, piece: bytes) -> None:
        self.text += piece


def setup_for(run_dir: Path, code: str, sink: Sink | None = None, timeouts: Timeouts = PATIENT) -> TrainerSetup:
    return TrainerSetup(
        run_dir=run_dir,
        command=(sys.executable, "-c", PRELUDE + code, "--run", str(run_dir)),
        environment=dict(os.environ),
        sinks=(sink,) if sink else (),
        timeouts=timeouts,
    )


async def death_of(
    run_dir: Path, code: str, sink: Sink | None = None, timeouts: Timeouts = PATIENT
) -> tuple[m.TrainerGone, Notes]:
    notes = Notes()
    supervisor = Supervisor(setup_for(run_dir, code, sink, timeouts), notes)
    supervisor.obey(m.SpawnTrainer(incarnation=1))
    gone = await notes.wait_for(m.TrainerGone)
    await supervisor.close()
    return gone, notes


@pytest.mark.parametrize(
    ("code", "reason", "signal_name", "exit_code"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", m.DeathReason.SIGNAL, "SIGSEGV", None),
        ("os.kill(os.getpid(), signal.SIGKILL)", m.DeathReason.SIGNAL, "SIGKILL", None),
        ("os.abort()", m.DeathReason.SIGNAL, "SIGABRT", None),
        ("raise RuntimeError('loss is a teapot')", m.DeathReason.EXCEPTION, "", 1),
        ("raise MemoryError", m.DeathReason.MEMORY, "", 1),
        ("sys.exit(3)", m.DeathReason.EXIT, "", 3),
        ("sys.exit(0)", m.DeathReason.EXIT, "", 0),
    ],
)
async def test_each_death_has_its_cause(run_dir, code, reason, signal_name, exit_code):
    """Signal, exit code and class of a death are the real ones."""
    gone, notes = await death_of(run_dir, code)
    spawned = notes.told[0]
    assert isinstance(spawned, m.TrainerSpawned)
    assert (gone.reason, gone.signal, gone.exit_code) == (reason, signal_name, exit_code)
    assert gone.pid == spawned.pid
    assert spawned.boot_id == boot_id()
    assert process_stat(gone.pid) is None


async def test_the_output_reaches_the_sink_and_the_death(run_dir):
    """Lines are passed on whole; the death has the last of them, with the traceback."""
    sink = Sink()
    gone, _ = await death_of(run_dir, "print('step one'); raise RuntimeError('a teapot')", sink)
    assert "step one\n" in gone.output
    assert "RuntimeError: a teapot" in gone.output
    assert sink.text.decode() == gone.output


async def test_a_traceback_is_printed_once(run_dir):
    """The second and third trainer that raise the same print its last lines only; another exception is whole again."""
    sink, notes = Sink(), Notes()
    code = (
        "from tolariad.core.calc.text.tracebacks import shortened\n"
        "import traceback\n"
        "try: raise RuntimeError('a teapot' if int(args.incarnation) < 4 else 'a kettle')\n"
        "except RuntimeError as error:\n"
        "    print(shortened(traceback.format_exc(), args.printed or ''), end='', file=sys.stderr)\n"
        "    sys.exit(1)"
    )
    supervisor = Supervisor(setup_for(run_dir, code, sink), notes)
    for number in range(1, 5):
        supervisor.obey(m.SpawnTrainer(incarnation=number))
        await notes.wait_for(m.TrainerGone)
        gone = [one for one in notes.told if isinstance(one, m.TrainerGone)]
        notes.told.clear()
        assert [(one.incarnation, one.reason) for one in gone] == [(number, m.DeathReason.EXCEPTION)]
    await supervisor.close()

    text = sink.text.decode()
    assert (text.count("RuntimeError: a teapot"), text.count("RuntimeError: a kettle")) == (3, 1)
    assert text.count("File ") == 2
    assert text.count("Traceback (most recent call last): as before\n") == 2


async def test_a_flood_of_output_is_cut_to_its_end(run_dir):
    """Ten megabytes in one line pass through; the death has the last 64 KiB."""
    sink = Sink()
    gone, _ = await death_of(run_dir, "sys.stdout.write('x' * 10_000_000 + 'the end'); sys.stdout.flush()", sink)
    assert len(gone.output) == 64 * 1024
    assert gone.output.endswith("the end")
    assert len(sink.text) > 10_000_000


async def test_a_grandchild_with_the_pipe_holds_nothing_up(run_dir):
    """A process outside the trainer's session that keeps its output open does not delay the death."""
    code = (
        "import subprocess; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True); print('left', p.pid, flush=True)"
    )
    gone, _ = await death_of(run_dir, code)
    left_over = int(gone.output.split()[1])
    try:
        assert gone.exit_code == 0
        assert process_stat(left_over) is not None
    finally:
        os.kill(left_over, signal.SIGKILL)


async def test_workers_end_with_their_trainer(run_dir):
    """Processes in the trainer's group are gone when its death is reported."""
    code = "pid = os.fork()\nif pid == 0: time.sleep(60)\nprint('worker', pid, flush=True)\nos.abort()"
    gone, _ = await death_of(run_dir, code)
    worker = int(gone.output.split()[1])
    assert await becomes_true(lambda: has_ended(worker))


async def test_a_hang_is_told_with_its_stacks_and_ended(run_dir):
    """Silence beyond the limit is reported first. The death that follows names the line where the trainer was."""
    code = "beat(Activity.HELD)\ndef stuck_here():\n    time.sleep(60)\nstuck_here()"
    gone, notes = await death_of(run_dir, code, timeouts=QUICK)
    silent = next(one for one in notes.told if isinstance(one, m.TrainerSilent))
    assert silent.activity == "held"
    assert silent.silent_s > silent.limit_s == pytest.approx(0.5)
    assert gone.reason is m.DeathReason.HANG
    assert gone.signal == "SIGKILL"
    assert "stuck_here" in gone.stacks


async def test_a_stopped_trainer_is_a_hang_too(run_dir):
    """A process in SIGSTOP writes no stacks, but is still ended."""
    gone, _ = await death_of(run_dir, "beat(Activity.HELD); os.kill(os.getpid(), signal.SIGSTOP)", timeouts=QUICK)
    assert (gone.reason, gone.stacks) == (m.DeathReason.HANG, "")


async def test_a_trainer_that_beats_is_left_alone(run_dir):
    """Heartbeats keep a trainer alive far longer than the limit of silence."""
    limits = replace(QUICK, hang=HangLimits(floor_s=2.0, unknown_s=60.0))
    code = "for _ in range(80):\n    beat(Activity.HELD)\n    time.sleep(0.05)"
    gone, notes = await death_of(run_dir, code, timeouts=limits)
    assert gone.exit_code == 0
    assert not any(isinstance(one, m.TrainerSilent) for one in notes.told)


async def test_an_order_to_kill_is_no_accident(run_dir):
    """A trainer that the kernel ordered to end is reported as killed, not as dead by a signal."""
    notes = Notes()
    supervisor = Supervisor(setup_for(run_dir, "time.sleep(60)"), notes)
    supervisor.obey(m.SpawnTrainer(incarnation=1))
    await notes.wait_for(m.TrainerSpawned)
    supervisor.obey(m.KillTrainer(incarnation=7, why="another one is meant"))
    assert not any(isinstance(one, m.TrainerGone) for one in notes.told)
    supervisor.obey(m.KillTrainer(incarnation=1, why="test"))
    assert (await notes.wait_for(m.TrainerGone)).reason is m.DeathReason.KILLED
    await supervisor.close()


async def test_the_end_of_the_supervisor_leaves_no_process(run_dir):
    """Closing ends the live trainer and cancels one that waits to be started."""
    notes = Notes()
    supervisor = Supervisor(setup_for(run_dir, "time.sleep(60)"), notes)
    supervisor.obey(m.SpawnTrainer(incarnation=1))
    spawned = await notes.wait_for(m.TrainerSpawned)
    supervisor.obey(m.SpawnTrainer(incarnation=2, delay_s=0.1))
    await supervisor.close()
    assert process_stat(spawned.pid) is None
    await asyncio.sleep(0.3)
    assert sum(isinstance(one, m.TrainerSpawned) for one in notes.told) == 1


async def test_the_next_trainer_waits_for_the_last_one(run_dir):
    """An early order is carried out after the live trainer was reaped."""
    notes = Notes()
    supervisor = Supervisor(setup_for(run_dir, "time.sleep(0.5)"), notes)
    supervisor.obey(m.SpawnTrainer(incarnation=1))
    await notes.wait_for(m.TrainerSpawned)
    supervisor.obey(m.SpawnTrainer(incarnation=2))
    await notes.wait_for(m.TrainerGone)
    assert await becomes_true(lambda: len(notes.told) == 4)
    await supervisor.close()
    kinds = [(type(one), one.incarnation) for one in notes.told]
    assert kinds == [(m.TrainerSpawned, 1), (m.TrainerGone, 1), (m.TrainerSpawned, 2), (m.TrainerGone, 2)]


async def test_a_command_that_does_not_exist_is_a_death(run_dir):
    """A trainer that cannot be started is reported as gone, with the reason."""
    notes = Notes()
    setup = TrainerSetup(run_dir=run_dir, command=("/nonexistent/python",), environment=os.environ, timeouts=QUICK)
    supervisor = Supervisor(setup, notes)
    supervisor.obey(m.SpawnTrainer(incarnation=1))
    gone = await notes.wait_for(m.TrainerGone)
    assert "/nonexistent/python" in gone.output
    assert notes.ends == {}


def former_trainer(run_dir: Path) -> subprocess.Popen:
    """Start a left-over process that holds the run's lock in a session of its own."""
    code = (
        "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        " f.write(str(os.getpid())); f.flush(); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run_dir / "trainer.lock")], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.readline() == b"held\n"
    return process


async def test_a_former_trainer_is_ended_before_the_next(run_dir):
    """The journal's last trainer still holds the lock: it is killed, then the new one starts."""
    left_over = former_trainer(run_dir)
    stat = process_stat(left_over.pid)
    notes = Notes()
    former = FormerTrainer(left_over.pid, stat.start_ticks, boot_id())
    supervisor = Supervisor(setup_for(run_dir, ""), notes, former)
    supervisor.obey(m.SpawnTrainer(incarnation=5))
    gone = await notes.wait_for(m.TrainerGone)
    assert left_over.wait(60) == -signal.SIGKILL
    assert gone.incarnation == 5
    await supervisor.close()


async def test_the_trainer_of_a_copied_run_is_left_to_its_own(run_dir, tmp_path):
    """A copy knows the original's trainer by its pid, but its lock is another one, so it is not killed."""
    theirs = tmp_path / "original"
    theirs.mkdir()
    other = former_trainer(theirs)
    ticks = process_stat(other.pid).start_ticks
    (run_dir / "trainer.lock").write_text(str(other.pid))
    notes = Notes()
    supervisor = Supervisor(setup_for(run_dir, ""), notes, FormerTrainer(other.pid, ticks, boot_id()))
    supervisor.obey(m.SpawnTrainer(incarnation=5))
    await notes.wait_for(m.TrainerGone)
    assert is_running(other.pid, ticks)
    other.kill()
    other.wait()
    await supervisor.close()


@pytest.mark.parametrize("what", ["another start time", "another boot"])
async def test_a_stranger_with_that_number_is_never_killed(run_dir, what):
    """Another process with the old pid stays alive; if the lock stays held, that is reported as stuck."""
    stranger = former_trainer(run_dir)
    ticks = process_stat(stranger.pid).start_ticks
    former = (
        FormerTrainer(stranger.pid, ticks + 1, boot_id())
        if what == "another start time"
        else FormerTrainer(stranger.pid, ticks, "0" * 32)
    )
    notes = Notes()
    supervisor = Supervisor(setup_for(run_dir, "", timeouts=Timeouts(kill_s=0.3)), notes, former)
    supervisor.obey(m.SpawnTrainer(incarnation=5))
    stuck = await notes.wait_for(m.TrainerStuck)
    assert is_running(stranger.pid, ticks)
    assert stuck.pid == stranger.pid
    assert not any(isinstance(one, m.TrainerSpawned) for one in notes.told)
    stranger.kill()
    stranger.wait()
    await supervisor.close()


async def test_a_trainer_that_survives_sigkill_is_told_as_stuck(run_dir, monkeypatch):
    """After the time-out it is stuck: nothing starts beside it, and its late end is still reported."""
    notes = Notes()
    supervisor = Supervisor(setup_for(run_dir, "time.sleep(60)", timeouts=Timeouts(poll_s=0.05, kill_s=0.2)), notes)
    supervisor.obey(m.SpawnTrainer(incarnation=1))
    spawned = await notes.wait_for(m.TrainerSpawned)
    kill_group = os.killpg
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    supervisor.obey(m.KillTrainer(incarnation=1, why="test"))
    stuck = await notes.wait_for(m.TrainerStuck)
    assert (stuck.incarnation, stuck.pid) == (1, spawned.pid)
    supervisor.obey(m.SpawnTrainer(incarnation=2))
    assert await becomes_true(lambda: sum(isinstance(one, m.TrainerStuck) for one in notes.told) > 1)
    assert [one.incarnation for one in notes.told if isinstance(one, m.TrainerStuck)] == [1, 2]
    assert sum(isinstance(one, m.TrainerSpawned) for one in notes.told) == 1
    monkeypatch.setattr(os, "killpg", kill_group)
    os.killpg(spawned.pid, signal.SIGKILL)
    assert (await notes.wait_for(m.TrainerGone)).incarnation == 1
    await supervisor.close()


async def test_the_lock_is_only_looked_at(run_dir):
    """Checking the lock does not take it from the trainer that wants it next."""
    from tolariad.supervisor.lock import is_held

    (run_dir / "trainer.lock").touch()
    assert not is_held(run_dir)
    with (run_dir / "trainer.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert is_held(run_dir)


async def test_a_child_hears_nothing_of_the_service_manager(run_dir, monkeypatch):
    """Variables by which a child could notify for the daemon are removed."""
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"):
        monkeypatch.setenv(name, "1")
    gone, _ = await death_of(
        run_dir, "print(sorted(set(os.environ) & {'NOTIFY_SOCKET', 'WATCHDOG_USEC', 'LISTEN_FDS'}))"
    )
    assert gone.output == "[]\n"


@pytest.mark.parametrize(("given", "wanted"), [(None, "0"), ("random", "0"), ("7", "7")])
async def test_the_order_of_a_set_is_the_same_in_every_trainer(run_dir, monkeypatch, given, wanted):
    """Otherwise a vocabulary made from a set of strings would change at a restart, with the same weights."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONHASHSEED", given)
    gone, _ = await death_of(run_dir, "print(os.environ['PYTHONHASHSEED'])")
    assert gone.output == f"{wanted}\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "glibc.cpu.x86_non_temporal_threshold=0x100000"),
        ("glibc.malloc.perturb=1", "glibc.malloc.perturb=1:glibc.cpu.x86_non_temporal_threshold=0x100000"),
        ("glibc.cpu.x86_non_temporal_threshold=0x8000000", "glibc.cpu.x86_non_temporal_threshold=0x8000000"),
    ],
)
def test_large_copies_of_a_trainer_go_past_the_caches_unless_somebody_said_otherwise(given, expected):
    """Other settings of the C library stay unchanged."""
    environment = child_environment({"GLIBC_TUNABLES": given} if given else {})

    assert environment["GLIBC_TUNABLES"] == expected
