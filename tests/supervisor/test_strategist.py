"""A user's strategy may hang, die, lie or flood: the caller gets a reason in time, and later a good answer again."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.strategy.packets import packet, seed
from tests.supervisor import liars
from tolariad.strategy import DefaultStrategy, read_state, write_state
from tolariad.supervisor.strategist import Strategist, VoteKind
from tolariad.supervisor.strategy_process import Allowance, StrategyLimits, StrategySetup

LIARS = Path(__file__).with_name("liars.py")
ANSWER_S = 1.0
QUICK = StrategyLimits(answer_s=ANSWER_S, start_s=20.0, backoff_s=0.05, stacks_s=0.1, kill_s=20.0)


class Log:
    def __init__(self) -> None:
        self.text = b""

    def __call__(self, piece: bytes) -> None:
        self.text += piece


@asynccontextmanager
async def asked(name: str, limits: StrategyLimits = QUICK, log: Log | None = None, **setup):
    """A strategist of one of the liars, with its process started."""
    setup = {"strategy": f"{LIARS}:{name}", "environment": dict(os.environ), "limits": limits} | setup
    strategist = Strategist(StrategySetup(sinks=(log,) if log else (), **setup))
    strategist.start()
    try:
        yield strategist
    finally:
        await strategist.close()
        assert group_of(strategist) == []


def group_of(strategist: Strategist) -> list[int]:
    """The processes that the strategist's processes started, by the environment that they inherited."""
    mark = str(LIARS).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            line, state = (entry / "cmdline").read_bytes(), (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark in line and f"--parent-pid\0{os.getpid()}\0".encode() in line and state not in "ZX":
            found.append(int(entry.name))
    return found


async def becomes(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        await asyncio.sleep(0.01)


async def runs(strategist: Strategist) -> None:
    """Wait until a process is ready."""
    await becomes(lambda: not strategist.problem)


async def ask(strategist: Strategist, epoch: int, fault: str = ""):
    """Ask about an epoch, and return the answer; a good one has one pause."""
    given = packet(epoch, 1.0, [seed("a")])
    given.experiment_name = fault
    return await strategist.ask(given, epoch)


def count_of(answer) -> int:
    return read_state(answer.state)["count"]


# -- a strategy that works ---------------------------------------------------------------------------------------------


async def test_an_honest_strategy_answers_and_its_state_comes_along():
    """Commands are the strategy's; the state is what it remembers; the hash is that of its file."""
    async with asked("Honest") as strategist:
        await runs(strategist)
        answers = [await ask(strategist, epoch) for epoch in (1, 2, 3)]

        assert [one.commands[0].command_id for one in answers] == ["1:1", "2:2", "3:3"]
        assert [count_of(one) for one in answers] == [1, 2, 3]
        assert {one.fallback for one in answers} == {""}
        assert all(0 < one.seconds < ANSWER_S for one in answers)
        assert strategist.source_hash == hashlib.sha256(LIARS.read_bytes()).hexdigest()


async def test_the_first_question_waits_for_the_start():
    """Nobody has to wait for the process before."""
    async with asked("Honest", QUICK_BUT_PATIENT) as strategist:
        assert (await ask(strategist, 1)).fallback == ""


QUICK_BUT_PATIENT = StrategyLimits(answer_s=20.0, stacks_s=0.1, backoff_s=0.05)


async def test_a_restored_state_is_loaded_before_the_next_question():
    """After a rollback the strategy goes on from the state of the target; b"" is its beginning."""
    async with asked("Honest") as strategist:
        await runs(strategist)
        for epoch in (1, 2, 3):
            await ask(strategist, epoch)
        strategist.restore(write_state({"count": 1}))
        assert (await ask(strategist, 2)).commands[0].command_id == "2:2"
        strategist.restore(b"")
        assert (await ask(strategist, 1)).commands[0].command_id == "1:1"


async def test_a_strategy_without_a_state_is_asked_too():
    """It has nothing to load, and agrees to every rollback."""
    async with asked("Stateless") as strategist:
        await runs(strategist)
        answer = await ask(strategist, 1)
        strategist.restore(b"")

        assert (await ask(strategist, 2)).fallback == answer.fallback == ""
        assert (await strategist.vote(answer.state, 1.0)).kind is VoteKind.AGREED


async def test_the_process_does_not_import_torch():
    """Its start is light: the packages that only a trainer needs are not there."""
    code = "import sys, tolariad.strategy.__main__; print({'torch', 'numpy', 'asyncio'} & set(sys.modules))"
    child = await asyncio.create_subprocess_exec(
        os.sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env=os.environ
    )
    assert (await child.communicate())[0] == b"set()\n"


# -- a strategy that does not answer -----------------------------------------------------------------------------------

# What a fault of liars.py must give as the reason.
FAULTS = {
    "raises": "failed in step(): ValueError: no idea what to do (",
    "recurses": "failed in step(): RecursionError",
    "returns text": "step() returned an object of type str",
    "returns an object": "step() returned an object of type Nothing",
    "a thousand commands": "step() returned 1000 commands; at most 16",
    "an unknown seed": "names the seed 'nobody'; the run has a",
    "not a number": "lr = nan",
    "another version": "version 2",
    "remembers too much": "at most 32768 are allowed",
    "remembers an object": "state['rubbish'] is of type object",
    "hangs": "did not answer within",
    "hangs in C": "did not answer within",
    "exits": "ended with exit code 3",
    "leaves hard": "ended with exit code 0",
    "segfaults": "was ended by SIGSEGV",
    "garbage": "sent bytes that are no answer",
    "half a frame, and the end": "ended with exit code 1",
    "half a header": "did not answer within",
    "four gigabytes": "announces 4294967295 bytes",
    "another generation": "answered question 777, but",
    "a thousand frames": "sent more than 16 commands",
    "a state that is none": "no state of a strategy",
    "forks children": "did not answer within",
}
GO_ON = 10


async def test_every_fault_is_a_reason_in_time_and_the_next_answer_is_good(caplog):
    """No command is obeyed, the state is that of the answer before, and the strategy goes on from it.

    It goes on in a new process, or in the same one if the user's code only raised or answered wrongly.
    """
    caplog.set_level(logging.WARNING)
    async with asked("Faulty") as strategist:
        await runs(strategist)
        good = await ask(strategist, 1)
        pids = group_of(strategist)
        for number, (fault, why) in enumerate(FAULTS.items(), 1):
            wrong = await ask(strategist, 2 * number, fault)
            assert why in wrong.fallback, fault
            assert wrong.fallback.startswith("The strategy liars.py:Faulty: ")
            assert (wrong.commands, wrong.state) == ((), good.state), fault
            assert wrong.seconds < ANSWER_S + 5.0
            assert wrong.is_late == why.startswith("did not answer"), fault
            assert wrong.misread == (fault == "another version"), fault
            await runs(strategist)
            good = await ask(strategist, 2 * number + 1)
            assert (good.fallback, count_of(good)) == ("", number + 1), f"after {fault}"
            assert [one.command_id for one in good.commands] == [f"{2 * number + 1}:{number + 1}"]
            assert (group_of(strategist) == pids) == (number <= GO_ON), fault

    assert FAULTS.keys() == liars.FAULTS.keys()
    assert all(why in caplog.text for why in FAULTS.values())
    # The stacks of those that hung, taken before they were killed.
    assert caplog.text.count("The stacks of the strategy liars.py:Faulty, before it was killed:") >= 2
    assert f'File "{LIARS}"' in caplog.text
    assert "in step" in caplog.text


async def test_children_of_a_strategy_are_killed_with_it():
    """Forked ones, and programs that it started, which hold its connection open."""
    async with asked("Faulty") as strategist:
        await runs(strategist)
        pending = asyncio.create_task(ask(strategist, 1, "forks children"))
        await becomes(lambda: len(group_of(strategist)) == 28)
        assert "did not answer" in (await pending).fallback
        await runs(strategist)
        assert len(group_of(strategist)) == 1


async def test_a_strategy_that_hangs_at_its_start_is_started_again(tmp_path, monkeypatch):
    """Questions are refused until then; the second start is good."""
    monkeypatch.chdir(tmp_path)
    limits = StrategyLimits(answer_s=0.1, start_s=1.5, backoff_s=0.01, stacks_s=0.1)
    async with asked("HangsAtStart", limits) as strategist:
        first = await ask(strategist, 1)
        await becomes(lambda: Path("starts").exists() and Path("starts").read_text() == "..")
        await runs(strategist)
        second = await ask(strategist, 2)

    assert "is still starting" in first.fallback
    assert (first.commands, first.state) == ((), b"")
    assert (second.fallback, count_of(second)) == ("", 1)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("DiesAtStart", "ended with exit code 5"),
        ("Honist", "did you mean 'Honest'?"),
    ],
)
async def test_a_strategy_that_cannot_start_is_said_and_tried_again_later(name, why):
    """A question after the first start is refused at once, without its time-out; the waits between starts double."""
    limits = StrategyLimits(answer_s=20.0, backoff_s=30.0, backoff_max_s=60.0, stacks_s=0.1)
    async with asked(name, limits) as strategist:
        await becomes(lambda: why in strategist.problem)
        answer = await ask(strategist, 1)
        again = await strategist.vote(b"", 20.0)

    assert why in answer.fallback
    assert answer.seconds < 10.0
    assert again.kind is VoteKind.ABSTAINED


async def test_a_program_that_is_not_there_is_a_reason():
    """The caller gets no OSError."""
    async with asked("Honest", command=("/nowhere/python",)) as strategist:
        answer = await ask(strategist, 1)
    assert "could not be started" in answer.fallback


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("HangsAtLoading", "did not answer within"),
        ("RefusesItsState", "failed in load_state_dict(): KeyError: 'count'"),
    ],
)
async def test_a_state_that_is_not_loaded_gives_no_answer(name, why):
    """An answer of a strategy with another state than the run's would be no answer to this run."""
    async with asked(name) as strategist:
        await runs(strategist)
        strategist.restore(write_state({"count": 7}))
        answer = await ask(strategist, 8)

    assert why in answer.fallback
    assert count_of(answer) == 7


async def test_a_question_that_is_not_waited_for_ends_the_process():
    """A later answer to it could be taken for that to the next one."""
    async with asked("Faulty") as strategist:
        await runs(strategist)
        await ask(strategist, 1)
        pending = asyncio.create_task(ask(strategist, 2, "hangs"))
        await asyncio.sleep(0.05)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        await runs(strategist)
        answer = await ask(strategist, 3)

    assert (answer.fallback, count_of(answer)) == ("", 2)


async def test_a_closed_strategist_answers_nothing_and_starts_nothing():
    """It may be closed twice, also during a start."""
    async with asked("Honest") as strategist:
        await strategist.close()
        assert "was closed" in (await ask(strategist, 1)).fallback
        strategist.start()
        assert group_of(strategist) == []


# -- votes -------------------------------------------------------------------------------------------------------------


async def test_a_strategy_votes_on_a_rollback():
    """It agrees, refuses by an exception, or abstains by silence; after that it answers as before."""
    async with asked("Honest") as strategist:
        await runs(strategist)
        near = await strategist.vote(write_state({"count": 1}), 5.0)
        far = await strategist.vote(write_state({"count": 101}), 5.0)
        assert (await ask(strategist, 1)).fallback == ""

    assert near.kind is VoteKind.AGREED
    assert far.kind is VoteKind.REFUSED
    assert "ValueError: that is too far" in far.why


async def test_a_vote_that_hangs_is_no_vote():
    """The process is killed; the next one has the state of the run."""
    async with asked("HangsAtVote") as strategist:
        await runs(strategist)
        before = await ask(strategist, 1)
        vote = await strategist.vote(before.state, 0.2)
        await runs(strategist)
        after = await ask(strategist, 2)

    assert vote.kind is VoteKind.ABSTAINED
    assert "did not vote within 0.2 s" in vote.why
    assert count_of(after) == 2


async def test_a_vote_beside_an_open_question_abstains_and_disturbs_nothing():
    """The question belongs to somebody else."""
    async with asked("Faulty") as strategist:
        await runs(strategist)
        await ask(strategist, 1)
        pending = asyncio.create_task(ask(strategist, 2, "hangs"))
        await asyncio.sleep(0.02)
        vote = await strategist.vote(write_state({"count": 1}), 0.05)

        assert not pending.done()
        assert "did not answer" in (await pending).fallback
    assert vote.kind is VoteKind.ABSTAINED


# -- output ------------------------------------------------------------------------------------------------------------


async def test_what_it_prints_is_in_the_log_with_a_prefix():
    """Both streams, line by line."""
    log = Log()
    async with asked("Prints", log=log) as strategist:
        await runs(strategist)
        await ask(strategist, 7)
        await becomes(lambda: b"not sure" in log.text)

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
    monkeypatch.setattr("tolariad.supervisor.strategy_process.time.monotonic", lambda: now[0])
    log = Log()
    allowance = Allowance((log,), 10, 60.0)
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
    assert all(one.seconds < 0.2 for one in answers)
    assert (vote.kind, refused.kind) == (VoteKind.AGREED, VoteKind.REFUSED)


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
