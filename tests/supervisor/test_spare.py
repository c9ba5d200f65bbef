"""A spare waits beside the trainer, takes its place when it has died, and is given up when memory is short."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys

import pytest
from msgspec.structs import replace

from tests.supervisor.test_supervisor import PATIENT, PRELUDE, Notes, has_ended
from tests.waiting import becomes_true
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.run.spare import SPARE_BYTES, Memory, why_not
from tolariad.core.state.run_state import RunState
from tolariad.supervisor import Supervisor, TrainerSetup, spare
from tolariad.supervisor.incarnation import Incarnation
from tolariad.supervisor.procfs import is_running

# The trainer in miniature waits as the real one does, by the real one's code, but for the imports.
WAITS = PRELUDE.replace('"--printed"', '"--printed", "--spare", "--spare-fd"').replace(
    "from tolariad.channel",
    """
from tolariad import lifelines
lifelines.die_with_parent(int(args.parent_pid))
if args.spare_fd:
    from tolariad.trainer.process import waiting
    turn = waiting.wait_to_train(int(args.spare_fd), lambda: None)
    if turn is None:
        sys.exit(0)
    args.printed = turn.printed
from tolariad.channel""",
    1,
)
# One that imports until there is a file.
IMPORTS = WAITS.replace("lambda: None", "importing").replace(
    "if args.spare_fd:",
    """
def importing():
    while not os.path.exists(args.run + "/imported"):
        time.sleep(0.01)
if args.spare_fd:""",
    1,
)
LIVES = "print('trains', args.incarnation, args.printed, args.spare); time.sleep(600)"


class Rig:
    """A supervisor with spares, and the state that they see."""

    def __init__(self, run_dir, wanted="on", waits=WAITS) -> None:
        self.notes, self.output = Notes(), bytearray()
        setup = TrainerSetup(
            run_dir=run_dir,
            command=(sys.executable, "-c", waits + LIVES, "--run", str(run_dir)),
            environment=dict(os.environ),
            sinks=(self.output.extend,),
            timeouts=PATIENT,
        )
        self.state = RunState()
        self.spares = spare.Spares(setup, wanted, lambda: self.state, self.notes.submit)
        self.supervisor = Supervisor(
            setup,
            self.notes,
            begin=lambda number, printed: Incarnation(
                number, setup, self.notes, printed, self.spares.take(number, printed)
            ),
        )

    def train(self, number: int) -> None:
        """Start a trainer; what the spares see is that it trains."""
        self.state = replace(self.state, trainer=replace(self.state.trainer, alive=False))
        self.supervisor.obey(m.SpawnTrainer(incarnation=number))

    async def trains(self, number: int) -> int:
        """Wait until that trainer trains, and return its pid."""
        assert await becomes_true(lambda: f"trains {number} ".encode() in self.output), bytes(self.output)
        run = replace(self.state.run, phase=st.Phase.RUNNING)
        trainer = replace(self.state.trainer, incarnation=number, alive=True, began=True, pid=self.supervisor.pid)
        self.state = replace(self.state, run=run, trainer=trainer)
        return self.supervisor.pid

    def changes(self) -> list[m.SpareChanged]:
        return [one.recorded for one in self.notes.told if isinstance(one, m.SpareNoted)]

    async def said(self, kind: m.Spare) -> m.SpareChanged:
        assert await becomes_true(lambda: any(one.spare is kind for one in self.changes())), self.notes.told
        return next(one for one in reversed(self.changes()) if one.spare is kind)

    async def close(self) -> None:
        await self.spares.close()
        await self.supervisor.close()


@pytest.fixture
async def rig(run_dir, monkeypatch, request):
    """One whose spare comes at once. The parameter is what `trainer.spare` says."""
    monkeypatch.setattr(spare, "AFTER_S", 0.0)
    monkeypatch.setattr(spare, "_LOOK_S", 0.02)
    made = Rig(run_dir, getattr(request, "param", "on"))
    made.spares.begin()
    yield made
    await made.close()
    assert all(has_ended(one.pid) for one in made.changes())


async def test_a_killed_trainer_is_followed_by_the_spare_and_the_spare_by_the_next_one(rig):
    """It is the same process, told of its number and of nothing else; its memory is known while it waits."""
    rig.train(1)
    first = await rig.trains(1)
    ready = await rig.said(m.Spare.READY)
    assert ready.pid != first
    assert (ready.incarnation, ready.skippable) == (2, True)
    assert await becomes_true(lambda: rig.spares.memory)

    os.kill(first, signal.SIGKILL)
    await rig.notes.wait_for(m.TrainerGone)
    rig.train(2)
    assert await rig.trains(2) == ready.pid
    assert [one.spare for one in rig.changes()][:2] == [m.Spare.READY, m.Spare.USED]
    assert await becomes_true(lambda: rig.changes()[-1].incarnation == 3)


async def test_a_spare_that_takes_over_before_it_has_imported_gives_way_no_more(run_dir, monkeypatch):
    """Its low priority was for a trainer that is gone."""
    monkeypatch.setattr(spare, "AFTER_S", 0.0)
    monkeypatch.setattr(spare, "_LOOK_S", 0.02)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    if os.geteuid() and resource.getrlimit(resource.RLIMIT_NICE)[0] < 20 - own:
        pytest.skip("a spare gives way only where it may have its priority back")
    rig = Rig(run_dir, waits=IMPORTS)
    rig.spares.begin()
    try:
        rig.train(1)
        first = await rig.trains(1)
        assert await becomes_true(lambda: rig.spares._spare)
        pid = rig.spares._spare.child.pid
        assert await becomes_true(lambda: os.getpriority(os.PRIO_PROCESS, pid) > own)
        os.kill(first, signal.SIGKILL)
        await rig.notes.wait_for(m.TrainerGone)
        rig.train(2)
        assert await becomes_true(lambda: os.getpriority(os.PRIO_PROCESS, pid) == own)
        (run_dir / "imported").touch()
        assert await rig.trains(2) == pid
    finally:
        await rig.close()


async def test_a_spare_that_was_killed_is_missed_by_nobody(rig):
    """The kill of both at once too: the next trainer is a new process."""
    rig.train(1)
    first = await rig.trains(1)
    ready = await rig.said(m.Spare.READY)
    os.kill(ready.pid, signal.SIGKILL)
    os.kill(first, signal.SIGKILL)
    await rig.notes.wait_for(m.TrainerGone)
    await rig.said(m.Spare.GIVEN_UP)
    rig.train(2)
    assert await rig.trains(2) != ready.pid


async def test_a_spare_that_is_killed_as_it_takes_over_is_a_trainer_that_died(rig):
    """Killed after it was told and before it trains: its end is reported as any trainer's, and the next one starts."""
    rig.train(1)
    first = await rig.trains(1)
    ready = await rig.said(m.Spare.READY)
    os.kill(ready.pid, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    await rig.notes.wait_for(m.TrainerGone)
    rig.train(2)
    await rig.said(m.Spare.USED)
    os.kill(ready.pid, signal.SIGKILL)
    assert await becomes_true(lambda: any(isinstance(o, m.TrainerGone) and o.incarnation == 2 for o in rig.notes.told))
    rig.train(3)
    assert await rig.trains(3) != ready.pid


@pytest.mark.parametrize("rig", ["auto"], indirect=True)
async def test_a_spare_is_given_up_when_memory_gets_short(rig, monkeypatch):
    """And none is started as long as it is short. A run that ends by itself has none either."""
    free = [64 << 30]
    monkeypatch.setattr(spare, "available_bytes", lambda: free[0])
    rig.train(1)
    await rig.trains(1)
    ready = await rig.said(m.Spare.READY)
    free[0] = 1 << 20
    gone = await rig.said(m.Spare.GIVEN_UP)
    assert "1 MiB of memory are available" in gone.why
    assert await becomes_true(lambda: has_ended(ready.pid))
    await asyncio.sleep(0.2)
    assert len(rig.changes()) == 2


@pytest.mark.parametrize("rig", ["built"], indirect=True)
async def test_a_built_spare_is_given_up_when_the_configuration_has_changed(rig):
    """The next one is built from the new one. Until then a trainer that dies is followed by a new process."""
    rig.train(1)
    await rig.trains(1)
    await rig.said(m.Spare.READY)
    rig.state = replace(rig.state, run=replace(rig.state.run, config="{}"))
    gone = await rig.said(m.Spare.GIVEN_UP)
    assert gone.why == "it was built from an earlier configuration"
    assert await becomes_true(lambda: rig.changes()[-1].spare is m.Spare.READY)
    ready = rig.changes()[-1]
    assert ready.pid != gone.pid

    # The change and the death come at once.
    rig.state = replace(rig.state, run=replace(rig.state.run, config="{ }"))
    assert rig.spares.take(2, "") is None


@pytest.mark.parametrize("rig", ["built"], indirect=True)
async def test_a_spare_is_told_what_it_does_before_it_waits(rig):
    """It takes over with the task that it has built."""
    rig.train(1)
    first = await rig.trains(1)
    await rig.said(m.Spare.READY)
    os.kill(first, signal.SIGKILL)
    await rig.notes.wait_for(m.TrainerGone)
    rig.train(2)
    await rig.trains(2)
    assert b"trains 2  built" in rig.output


def test_memory_decides_and_a_spare_does_not_come_and_go():
    """What starting one takes is more than what keeping one takes, by what a spare holds."""
    trainer = 8 << 30
    for free in range(0, 8 << 30, 64 << 20):
        starts, stays = (not why_not("auto", Memory(free, trainer), exists=exists) for exists in (False, True))
        assert stays or not starts
        if starts:
            assert not why_not("auto", Memory(free - SPARE_BYTES, trainer), exists=True)
        # One that is built holds a model and data too.
        if not why_not("built", Memory(free, trainer), exists=False):
            assert not why_not("auto", Memory(free - trainer, trainer), exists=False)
        # A process for each rank.
        if not why_not("auto", Memory(free, trainer, 3), exists=False):
            assert not why_not("auto", Memory(free - 3 * SPARE_BYTES, trainer, 3), exists=True)
    assert why_not("auto", Memory(None, trainer), exists=False)
    assert not why_not("auto", Memory(64 << 30, trainer), exists=False)
    for wanted in ("on", True):
        assert not why_not(wanted, Memory(0, trainer), exists=False)
    for wanted in ("off", False):
        assert why_not(wanted, Memory(64 << 30, trainer), exists=False)


async def test_no_spare_is_left_by_a_daemon_that_was_killed(run_dir):
    """A process that keeps a spare is killed: the spare ends with it."""
    program = f"""
import asyncio, sys
from pathlib import Path
from tests.supervisor.test_spare import Rig, spare, m
spare.AFTER_S, spare._LOOK_S = 0.0, 0.02
async def main():
    rig = Rig(Path({str(run_dir)!r}))
    rig.spares.begin()
    rig.train(1)
    await rig.trains(1)
    print((await rig.said(m.Spare.READY)).pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdout=asyncio.subprocess.PIPE, env=environment, cwd=run_dir
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    stat = spare.resident_bytes(pid)
    assert stat
    process.kill()
    await process.wait()
    assert await becomes_true(lambda: has_ended(pid))
    assert not is_running(pid, 0)
