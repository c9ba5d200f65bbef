"""The process of an analysis may hang, die or lie: the run gets one reply in time, and nothing of it is left."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.core.pruning.test_analysis import REQUEST
from tests.supervisor.analysts import ACTS
from tests.waiting import becomes_true
from tolariad.core import messages as m
from tolariad.core.calc.pruning.verdict import PruningDecision
from tolariad.core.calc.settings.pruning import Prune
from tolariad.supervisor import analyst, peer_process
from tolariad.supervisor.analyst import Analyst, AnalystSetup
from tolariad.supervisor.peer_process import PeerLimits

ANALYSTS = Path(__file__).with_name("analysts.py")
QUICK = PeerLimits(stacks_s=0.1, kill_s=20.0)
# What the reply to each fault must say.
WHY = {
    "hangs": "did not answer within",
    "hangs in C": "did not answer within",
    "exits": "ended with exit code 3",
    "segfaults": "was ended by SIGSEGV",
    "forks children": "did not answer within",
    "garbage": "bytes; at most 1048576 are allowed",
    "four gigabytes": "4294967295 bytes; at most",
    "half an answer": "ended with exit code 0",
    "no message": "are no StructuralPruningResponse",
    "another request": "The answer is to request another",
    "one group twice": "'conv' has two sets of units",
    "says why not": "The model cannot be analysed: no.",
    "a masked unit": "conv has no unit 8 that is not masked",
    "an accuracy that is NaN": "it is NO_GO",
    "no file": "importance/p000004.safetensors has 0 bytes, but it says 6",
}


class Run:
    """A run's folder, with an analyst whose process is the named one of analysts.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "checkpoints" / "c000003").mkdir(parents=True)
        self.replies = []

    @asynccontextmanager
    async def analyst(self, name: str, **more):
        setup = AnalystSetup(
            run_dir=self.folder,
            config=self.folder / "config.resolved.json",
            environment=dict(os.environ),
            limits=QUICK,
            command=(sys.executable, str(ANALYSTS), name),
            **{"prune": Prune(), **more},
        )
        analyst = Analyst(setup, self.replies.append)
        try:
            yield analyst
        finally:
            await analyst.close()
            # Its children were killed before it was reaped; the system may still be at it.
            assert await becomes_true(lambda: not self.processes())

    def effect(self, cycle=4, limit_s=60.0):
        request = replace(REQUEST, cycle=cycle, output=f"importance/p{cycle:06d}.safetensors")
        return m.AnalyzeCheckpoint(request=request, limit_s=limit_s)

    def processes(self) -> list[int]:
        """Those of this run, and their children, by the command line that they inherited."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
                dead = line and (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            if str(self.folder).encode() in line and str(ANALYSTS).encode() in line and not dead:
                found.append(int(entry.name))
        return found

    async def reply(self):
        assert await becomes_true(lambda: self.replies, 60.0)
        (reply,) = self.replies
        return reply


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


async def test_a_good_answer_is_one_reply_with_what_the_journal_keeps(run):
    """The units are of this cycle only; the channels are those of the model before any pruning."""
    async with run.analyst("honest") as analyst:
        analyst.obey(run.effect())
        reply = await run.reply()

    assert (reply.cycle, reply.why) == (4, "")
    assert (reply.found.decision, reply.found.units) == (PruningDecision.GO, {"conv": (0, 1)})
    assert (reply.found.channels, reply.found.total, reply.found.groups, reply.found.refused) == (2, 200, 1, 1)
    assert (reply.found.correlation, reply.found.stability, reply.found.plan) == (0.75, 0.5, "{}")
    assert (reply.found.importance, reply.found.importance_size) == ("importance/p000004.safetensors", 6)
    assert (run.folder / reply.found.importance).read_bytes() == b"scores"


async def test_a_task_without_accuracy_has_its_loss_in_the_journal(run):
    """Not the 1.0 that stands for an accuracy there."""
    async with run.analyst("honest, by a loss") as analyst:
        analyst.obey(run.effect())
        found = (await run.reply()).found

    assert (found.accuracy, found.accuracy_masked, found.loss) == (None, None, 0.5)
    assert found.loss_masked == pytest.approx(0.55)


def test_every_act_has_a_reason():
    """The table above names all of them. tests/core/pruning/test_analysis.py has all lies."""
    assert WHY.keys() >= ACTS.keys()


@pytest.mark.parametrize("fault", WHY)
async def test_every_fault_is_one_reply_with_its_reason(run, fault, monkeypatch):
    """There is no result, and no file that no event names."""
    # How a process ended is known a moment after its connection did, on a loaded machine seconds after.
    monkeypatch.setattr(peer_process, "_END_S", 30.0)
    async with run.analyst(fault) as analyst:
        analyst.obey(run.effect(limit_s=1.0 if WHY[fault].startswith("did not answer") else 60.0))
        reply = await run.reply()

    assert (reply.cycle, reply.found) == (4, None)
    assert WHY[fault] in reply.why
    assert not list(run.folder.glob("importance/*"))


async def test_an_idle_analysis_without_a_core_becomes_an_ordinary_one(run):
    """After half of its time, so that a run on all cores is analysed too; both within the one limit."""
    async with run.analyst("starves") as analyst:
        analyst.obey(run.effect(limit_s=16.0))
        reply = await run.reply()

    assert (reply.cycle, reply.why) == (4, "")
    assert reply.found.decision is PruningDecision.GO


async def test_an_analysis_that_starves_begins_again_and_takes_turns_with_the_training(run, monkeypatch):
    """Long before half of its time. The second process is stopped and continued again and again until it answers."""
    monkeypatch.setattr(analyst, "has_starved", lambda pid: True)
    async with run.analyst("takes turns") as one:
        one.obey(run.effect(limit_s=600.0))
        reply = await run.reply()

    assert (reply.cycle, reply.why) == (4, "")
    assert reply.found.decision is PruningDecision.GO


@pytest.mark.parametrize("priority", ["idle", "normal"])
@pytest.mark.parametrize(
    ("core", "told"),
    [
        ((1,), {"idle": "cores 1, idle, session same", "normal": "cores 1, idle, session same"}),
        ((), {"idle": "cores 0,1, idle, session own", "normal": "cores 0,1, normal, session own"}),
    ],
)
async def test_the_core_of_an_analysis(run, core, told, priority):
    """That of the recorder, which comes first there: its session and SCHED_IDLE. Without one, all cores of the run."""
    async with run.analyst("tells", core=lambda: core, cores=(0, 1), prune=Prune(analysis_priority=priority)) as one:
        one.obey(run.effect())
        reply = await run.reply()

    assert reply.why == told[priority]


async def test_a_command_that_cannot_be_started_is_a_reply_too(run):
    """As when the interpreter is gone."""
    async with run.analyst("honest") as analyst:
        analyst._setup = AnalystSetup(
            run_dir=run.folder, config=run.folder, prune=Prune(), environment=os.environ, command=("/nowhere/python",)
        )
        analyst.obey(run.effect())
        reply = await run.reply()

    assert reply.found is None
    assert "FileNotFoundError" in reply.why


async def test_the_checkpoint_is_held_and_a_second_analysis_is_refused(run):
    """Until the answer is there; then nothing holds it."""

    def is_held():
        descriptor = os.open(run.folder / "checkpoints" / "c000003", os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    async with run.analyst("hangs") as analyst:
        analyst.obey(run.effect())
        assert await becomes_true(is_held)
        analyst.obey(run.effect(cycle=5))
        reply = await run.reply()
        assert (reply.cycle, reply.why) == (5, "the analysis of cycle 4 is still running")
        analyst.obey(m.CancelAnalysis(cycle=4))
        assert await becomes_true(lambda: not is_held())


async def test_a_cancelled_analysis_gives_no_reply_and_the_next_one_runs(run):
    """The cancelled process is gone before the next one starts."""
    async with run.analyst("hangs") as analyst:
        analyst.obey(run.effect())
        assert await becomes_true(run.processes)
        analyst.obey(m.CancelAnalysis(cycle=3))
        await asyncio.sleep(0)
        assert run.processes()
        analyst.obey(m.CancelAnalysis(cycle=4))
        analyst._setup = AnalystSetup(
            run_dir=run.folder,
            config=run.folder,
            prune=Prune(),
            environment=dict(os.environ),
            command=(sys.executable, str(ANALYSTS), "honest"),
        )
        analyst.obey(run.effect(cycle=5))
        reply = await run.reply()

    assert (reply.cycle, reply.why) == (5, "")
