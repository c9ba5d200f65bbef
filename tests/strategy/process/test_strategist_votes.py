"""The other work of a strategist beside questions: votes, the strategy's output, and the default policy in its own
process.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from tests.strategy.packets import packet, seed
from tests.strategy.process.strategists import LIARS, QUICK, Log, ask, asked, count_of, runs, strategies_of
from tests.waiting import becomes_true, wait_for
from tolariad.core import messages as m
from tolariad.strategy import DefaultStrategy, write_state
from tolariad.strategy.process.child import StrategySetup
from tolariad.strategy.process.strategist import Strategist
from tolariad.supervisor.peer_process import Allowance

# -- votes -------------------------------------------------------------------------------------------------------------


async def test_a_strategy_votes_on_a_rollback():
    """It agrees, refuses by an exception, or abstains by silence; after that it answers as before."""
    async with asked("Honest") as strategist:
        await runs(strategist)
        near = await strategist.vote(write_state({"count": 1}), 5.0)
        far = await strategist.vote(write_state({"count": 101}), 5.0)
        assert (await ask(strategist, 1)).fallback == ""

    assert near.vote is m.Vote.AGREED
    assert far.vote is m.Vote.REFUSED
    assert "ValueError: that is too far" in far.why


async def test_a_vote_that_hangs_is_no_vote():
    """The process is killed; the next one has the state of the run."""
    async with asked("HangsAtVote") as strategist:
        await runs(strategist)
        before = await ask(strategist, 1)
        vote = await strategist.vote(before.state, 0.2)
        await runs(strategist)
        after = await ask(strategist, 2)

    assert vote.vote is m.Vote.ABSTAINED
    assert "did not vote within 0.2 s" in vote.why
    assert count_of(after) == 2


async def test_a_vote_beside_an_open_question_abstains_and_disturbs_nothing():
    """The question belongs to somebody else."""
    async with asked("Faulty", replace(QUICK, answer_s=4.0)) as strategist:
        await runs(strategist)
        await ask(strategist, 1)
        pending = asyncio.create_task(ask(strategist, 2, "hangs"))
        await asyncio.sleep(0.02)
        vote = await strategist.vote(write_state({"count": 1}), 0.05)

        assert not pending.done()
        assert "did not answer" in (await pending).fallback
    assert vote.vote is m.Vote.ABSTAINED


# -- output ------------------------------------------------------------------------------------------------------------


async def test_what_it_prints_is_in_the_log_with_a_prefix():
    """Both streams, line by line."""
    log = Log()
    async with asked("Prints", log=log) as strategist:
        await runs(strategist)
        await ask(strategist, 7)
        assert await becomes_true(lambda: b"not sure" in log.text)

    assert log.text == b"strategy: thinking about epoch 7\nstrategy: not sure\n"


async def test_a_flood_fills_no_log_and_blocks_nobody():
    """The log takes its share and says how much is missing; loop and strategy go on answering."""
    log = Log()
    async with asked("Floods", log=log) as strategist:
        await runs(strategist)
        delays = []
        for epoch in range(1, 11):
            assert (await ask(strategist, epoch)).fallback == ""
            began = time.monotonic()
            await asyncio.sleep(0.02)
            delays.append(time.monotonic() - began)

    shown, told = log.text.split(b"strategy: [", 1)
    assert 0 < len(shown) <= QUICK.log_bytes * 1.2
    assert b" bytes of its output were left out here]\n" in told
    assert sorted(delays)[5] < 0.3


def test_the_allowance_passes_whole_lines_and_says_what_is_missing(monkeypatch):
    """In each window so many bytes; the notice comes with the next line, or at the end."""
    now = [100.0]
    monkeypatch.setattr("tolariad.supervisor.peer_process.time.monotonic", lambda: now[0])
    log = Log()
    allowance = Allowance("strategy", (log,), 10, 60.0)
    allowance.write(b"one\ntwo\n")
    allowance.write(b"three\n")
    allowance.write(b"x\n")
    now[0] += 60.0
    allowance.write(b"four\n")
    allowance.write(b"fivefive\n")
    allowance.close()

    lines = ["one", "two", "[8 bytes of its output were left out here]", "four"]
    lines += ["[9 bytes of its output were left out here]"]
    assert log.text.decode() == "".join(f"strategy: {line}\n" for line in lines)


# -- the default policy ------------------------------------------------------------------------------------------------


def default(make=DefaultStrategy) -> Strategist:
    return Strategist(StrategySetup(strategy="default", environment={}), make)


async def test_the_default_policy_answers_in_this_process():
    """Its state goes into the answer and comes back from it; no process is started."""
    strategist = default()
    strategist.start()
    seeds = [seed("a")]
    answers = [await strategist.ask(packet(epoch, 1.0, seeds), epoch) for epoch in range(1, 5)]
    again = default()
    again.restore(answers[2].state)
    repeated = await again.ask(packet(4, 1.0, seeds), 1)
    strategist.restore(b"")
    anew = await strategist.ask(packet(4, 1.0, seeds), 5)
    vote = await strategist.vote(answers[1].state, 1.0)
    refused = await strategist.vote(write_state({"best": "low"}), 1.0)
    await strategist.close()

    assert [len(one.commands) for one in answers] == [0, 0, 0, 1]
    assert (repeated.commands, repeated.state) == (answers[3].commands, answers[3].state)
    assert anew.commands == ()
    assert all(one.seconds < 10.0 for one in answers)
    assert (vote.vote, refused.vote) == (m.Vote.AGREED, m.Vote.REFUSED)


async def test_a_defect_of_the_default_policy_is_a_reason_too():
    """Its state stays that of the last good answer."""

    class Broken(DefaultStrategy):
        def step(self, packet):
            if packet.current_epoch == 2:
                super().step(packet)
                raise RuntimeError("a defect")
            return super().step(packet)

    strategist, whole = default(Broken), default()
    answers = [await strategist.ask(packet(epoch), epoch) for epoch in (1, 2, 3)]
    expected = [await whole.ask(packet(epoch), epoch) for epoch in (1, 3)]

    assert "failed: RuntimeError: a defect" in answers[1].fallback
    assert answers[1].state == answers[0].state
    assert answers[2].state == expected[1].state


async def test_a_packet_that_is_too_large_is_a_reason():
    """The strategy is not asked with half of it."""
    async with asked("Honest") as strategist:
        await runs(strategist)
        large = packet(1, 1.0, [seed("s" * 60_000), seed("t" * 6_000)])
        answer = await strategist.ask(large, 1)
        assert "at most 65536 are allowed" in answer.fallback
        assert (await ask(strategist, 2)).fallback == ""


# -- the process and its daemon ----------------------------------------------------------------------------------------

DAEMON = """
import asyncio, os, sys
from tolariad.strategy.process.strategist import Strategist
from tolariad.strategy.process.child import StrategySetup

async def main():
    strategist = Strategist(StrategySetup(strategy=sys.argv[1], environment=dict(os.environ)))
    strategist.start()
    while strategist.problem:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_the_process_dies_with_its_daemon_and_is_the_first_to_be_killed_for_memory():
    """Also if the daemon is killed with SIGKILL, and the strategy waits for nothing."""
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, f"{LIARS}:Honest"], stdout=subprocess.PIPE)
    try:
        assert daemon.stdout.readline() == b"ready\n"
        (pid,) = strategies_of(daemon.pid)
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    finally:
        daemon.kill()
        daemon.wait()
    wait_for(lambda: not strategies_of(daemon.pid), "its end")
