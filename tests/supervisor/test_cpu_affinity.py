"""Scheduling that the recorder's thread requests from the system. A refusal changes only the record."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from tests.core.simulate import environment
from tolariad.core import messages as m
from tolariad.supervisor.cpu_affinity import Scheduling

ALL = tuple(sorted(os.sched_getaffinity(0)))
several_cores = pytest.mark.skipif(len(ALL) < 2, reason="one core cannot be shared out")


def context(threads):
    return m.ExecutionContextRecorded(
        incarnation=3,
        environment=environment(threads=threads),
        hash="0" * 64,
        parameters=1,
        steps_per_epoch=1,
    )


@pytest.fixture
def trainer():
    """A process that can be pinned."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.stdin.close()


def in_thread(function):
    """Run it in a thread of its own, because scheduling belongs to a thread; return its result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@several_cores
def test_recorder_and_trainer_are_apart_and_told_as_read_back(tmp_path, trainer):
    """Their cores do not overlap; after the trainer is gone everything is as before."""
    scheduling = Scheduling(tmp_path)

    def serve():
        recorded = scheduling.take(context(threads=1), trainer)
        meanwhile = os.sched_getaffinity(0), os.sched_getaffinity(trainer)
        alone = scheduling.recorders_core
        child = subprocess.run(
            [sys.executable, "-S", "-c", "import os; print(os.sched_getscheduler(0))"], capture_output=True, text=True
        )
        scheduling.give_back()
        after = os.sched_getscheduler(0), os.sched_getaffinity(0)
        return recorded, meanwhile, child.stdout.strip(), after, (alone, scheduling.recorders_core)

    recorded, meanwhile, child, after, alone = in_thread(serve)

    assert recorded.skippable
    assert recorded.polls
    assert (set(recorded.daemon_cores), set(recorded.trainer_cores)) == meanwhile
    assert sorted(recorded.daemon_cores + recorded.trainer_cores) == list(ALL) == list(recorded.cores)
    assert recorded.limits.nofile != 0
    assert (recorded.scheduler, recorded.refused) == ("fifo", "") or recorded.refused.startswith("SCHED_FIFO: ")
    assert child == str(os.SCHED_OTHER)
    assert after == (os.SCHED_OTHER, set(ALL))
    # An analysis runs there, as long as the recorder has it.
    assert alone == (recorded.daemon_cores, ())
    assert scheduling.cores == ALL


@several_cores
def test_a_refusal_of_fifo_is_told_and_the_rest_holds(tmp_path, trainer, monkeypatch):
    """Without permission the recorder is pinned and polls as an ordinary thread."""

    def refuse(_thread, policy, _param):
        if policy & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    scheduling = Scheduling(tmp_path)

    def serve():
        recorded = scheduling.take(context(threads=1), trainer)
        scheduling.give_back()
        return recorded

    recorded = in_thread(serve)

    assert recorded.refused == "SCHED_FIFO: [Errno 1] Operation not permitted"
    assert recorded.scheduler == "other"
    assert recorded.polls


def test_a_trainer_that_takes_every_core_is_left_alone(tmp_path, trainer):
    """No pin, no class and no polling: each would take time from the trainer."""
    recorded = in_thread(lambda: Scheduling(tmp_path).take(context(threads=len(ALL)), trainer))

    assert (recorded.polls, recorded.scheduler, recorded.priority) == (False, "other", 0)
    assert recorded.daemon_cores == recorded.trainer_cores == ()
    assert os.sched_getaffinity(trainer) == set(ALL)
    assert "leave none" in recorded.why


@several_cores
def test_a_trainer_that_is_gone_already_is_told_and_nobody_is_pinned(tmp_path):
    """Its death will reach the kernel; until then the recorder stays as it is."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    recorded, affinity = in_thread(
        lambda: (Scheduling(tmp_path).take(context(threads=1), process.pid), os.sched_getaffinity(0))
    )

    assert recorded.refused.startswith("the trainer's cores: ")
    assert not recorded.polls
    assert affinity == set(ALL)


@several_cores
def test_a_thread_that_never_pauses_loses_its_class(tmp_path, trainer):
    """SIGXCPU comes before the system's limit would end the daemon. The run continues at ordinary priority."""
    scheduling = Scheduling(tmp_path)

    def serve():
        if scheduling.take(context(threads=1), trainer).scheduler != "fifo":
            scheduling.give_back()
            return None
        other = threading.Thread(target=scheduling.yield_up)
        other.start()
        other.join()
        scheduler = os.sched_getscheduler(0)
        scheduling.give_back()
        return scheduler

    assert in_thread(serve) in (None, os.SCHED_OTHER)
