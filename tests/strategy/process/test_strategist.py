"""A user's strategy may hang, die, lie or flood: the caller gets a reason in time, and later a good answer again."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.strategy.process import liars
from tests.strategy.process.strategists import (
    ANSWER_S,
    LIARS,
    PATIENT,
    QUICK,
    ask,
    asked,
    count_of,
    runs,
    strategies_of,
)
from tests.waiting import becomes_true
from tolariad.core import messages as m
from tolariad.leyline import CommandType
from tolariad.strategy import write_state
from tolariad.strategy.process.child import StrategyLimits
from tolariad.supervisor import peer_process

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
    async with asked("Honest") as strategist:
        assert (await ask(strategist, 1)).fallback == ""


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
        assert (await strategist.vote(answer.state, 1.0)).vote is m.Vote.AGREED


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
# After these the process is asked again; after the others a new one is.
GOES_ON = [*FAULTS][:8]
SILENT = [fault for fault, why in FAULTS.items() if why.startswith("did not answer")]
WRONG = [fault for fault in FAULTS if fault not in SILENT]


@pytest.mark.parametrize(
    ("limits", "faults"),
    [(QUICK, SILENT), (PATIENT, [one for one in FAULTS if one not in SILENT])],
    ids=["silent", "wrong"],
)
async def test_every_fault_is_a_reason_in_time_and_the_next_answer_is_good(caplog, monkeypatch, limits, faults):
    """No command is obeyed, the state is that of the answer before, and the strategy goes on from it.

    It goes on in a new process, or in the same one if the user's code only raised or answered wrongly.
    """
    caplog.set_level(logging.WARNING)
    # How a process ended is known a moment after its connection did, on a loaded machine seconds after.
    monkeypatch.setattr(peer_process, "_END_S", limits.answer_s)
    async with asked("Faulty", limits) as strategist:
        await runs(strategist)
        good = await ask(strategist, 1)
        for number, fault in enumerate(faults, 1):
            why, pids = FAULTS[fault], strategies_of(os.getpid())
            wrong = await ask(strategist, 2 * number, fault)
            assert why in wrong.fallback, fault
            assert wrong.fallback.startswith("The strategy liars.py:Faulty: ")
            assert (wrong.commands, wrong.state) == ((), good.state), fault
            assert wrong.seconds < limits.answer_s + 5.0
            assert wrong.is_late == (fault in SILENT), fault
            assert wrong.misread == (fault == "another version"), fault
            await runs(strategist)
            good = await ask(strategist, 2 * number + 1)
            assert (good.fallback, count_of(good)) == ("", number + 1), f"after {fault}"
            assert [one.command_id for one in good.commands] == [f"{2 * number + 1}:{number + 1}"]
            assert (strategies_of(os.getpid()) == pids) == (fault in GOES_ON), fault

    assert all(FAULTS[fault] in caplog.text for fault in faults)
    if faults is SILENT:
        # The stacks of those that hung, taken before they were killed.
        assert caplog.text.count("The stacks of the strategy liars.py:Faulty, before it was killed:") >= 2
        assert f'File "{LIARS}"' in caplog.text
        assert "in step" in caplog.text


def test_every_fault_of_the_liars_has_a_reason():
    """The table above names all of them but those that are the run's to refuse."""
    assert FAULTS.keys() == liars.FAULTS.keys() - LEFT_TO_THE_RUN


# The commands can be read: the run refuses each by itself, and records why.
LEFT_TO_THE_RUN = {"an unknown seed", "not a number"}


async def test_commands_that_the_run_will_refuse_are_handed_on():
    """One lie costs one command: the pause beside the unknown seed comes along."""
    async with asked("Faulty") as strategist:
        answers = [await ask(strategist, epoch, fault) for epoch, fault in enumerate(sorted(LEFT_TO_THE_RUN), 1)]

    assert [one.fallback for one in answers] == ["", ""]
    assert [[command.command_type for command in one.commands] for one in answers] == [
        [CommandType.COMMAND_PAUSE, CommandType.COMMAND_SEED],
        [CommandType.COMMAND_OPTIMIZER],
    ]


async def test_children_of_a_strategy_are_killed_with_it():
    """Forked ones, and programs that it started, which hold its connection open."""
    # They are all there before the answer is given up.
    async with asked("Faulty", replace(QUICK, answer_s=5.0)) as strategist:
        await runs(strategist)
        pending = asyncio.create_task(ask(strategist, 1, "forks children"))
        assert await becomes_true(lambda: len(strategies_of(os.getpid())) == 28)
        assert "did not answer" in (await pending).fallback
        await runs(strategist)
        assert len(strategies_of(os.getpid())) == 1


async def test_a_strategy_that_hangs_at_its_start_is_started_again(tmp_path, monkeypatch):
    """Questions are refused until then; the second start is good."""
    monkeypatch.chdir(tmp_path)
    limits = StrategyLimits(answer_s=1.0, start_s=4.0, backoff_s=0.01, stacks_s=0.1)
    async with asked("HangsAtStart", limits) as strategist:
        first = await ask(strategist, 1)
        assert await becomes_true(lambda: Path("starts").exists() and len(Path("starts").read_text()) > 1)
        await runs(strategist)
        second = await ask(strategist, 2)

    assert "is still starting" in first.fallback
    assert (first.commands, first.state) == ((), b"")
    assert (second.fallback, count_of(second)) == ("", 1)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("DiesAtStart", "ended with exit code 5"),
        ("Honist", "did you mean Honest?"),
        ("NoTextAtStart", "sent a READY that cannot be read"),
    ],
)
async def test_a_strategy_that_cannot_start_is_said_and_tried_again_later(name, why):
    """A question after the first start is refused at once, without its time-out; the waits between starts double."""
    limits = StrategyLimits(answer_s=20.0, backoff_s=30.0, backoff_max_s=60.0, stacks_s=0.1)
    async with asked(name, limits) as strategist:
        assert await becomes_true(lambda: why in strategist.problem)
        answer = await ask(strategist, 1)
        again = await strategist.vote(b"", 20.0)

    assert why in answer.fallback
    assert answer.seconds < 10.0
    assert again.vote is m.Vote.ABSTAINED


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
    async with asked(name, QUICK) as strategist:
        await runs(strategist)
        strategist.restore(write_state({"count": 7}))
        answer = await ask(strategist, 8)

    assert why in answer.fallback
    assert count_of(answer) == 7


async def test_a_question_that_is_not_waited_for_ends_the_process():
    """A later answer to it could be taken for that to the next one."""
    async with asked("Faulty", QUICK) as strategist:
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
        assert strategies_of(os.getpid()) == []
