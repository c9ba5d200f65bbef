"""An answer is read whole or not at all."""

from __future__ import annotations

import pytest

from tests.strategy.packets import packet, seed
from tolariad.leyline import (
    AdaptationCommand,
    CommandOptimizerAdjustment,
    CommandSeedOperation,
    CommandType,
    SeedOperation,
    encode,
)
from tolariad.strategy import ANSWER_BYTES_MAX, COMMANDS_MAX, AnswerRefused, Strategy, answer_of, read_commands

ASKED = packet(3, 1.0, [seed("a"), seed("b")])


def pause(name: str = "p") -> AdaptationCommand:
    return AdaptationCommand(version=1, command_id=name, command_type=CommandType.COMMAND_PAUSE)


def cull(name: str) -> AdaptationCommand:
    return AdaptationCommand(
        version=1,
        command_id="c",
        command_type=CommandType.COMMAND_SEED,
        target_seed_id=name,
        seed_operation=CommandSeedOperation(operation=SeedOperation.SEED_OP_CULL),
    )


def rate(value: float) -> AdaptationCommand:
    adjusted = CommandOptimizerAdjustment(hyperparameters={"lr": value})
    return AdaptationCommand(
        version=1, command_id="o", command_type=CommandType.COMMAND_OPTIMIZER, optimizer_adjustment=adjusted
    )


class Says:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def step(self, packet):
        return self.answer


def test_one_command_or_a_list_is_an_answer():
    """An empty command or an empty list changes nothing."""
    assert isinstance(Says(None), Strategy)
    assert answer_of(Says(pause()), ASKED) == [encode(pause())]
    assert answer_of(Says([pause("1"), pause("2")]), ASKED) == [encode(pause("1")), encode(pause("2"))]
    assert answer_of(Says(()), ASKED) == []
    assert read_commands(answer_of(Says(AdaptationCommand(version=1)), ASKED)) == ()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "returned None"),
        (7, "of type int;"),
        ("pause", "of type str;"),
        ({"type": "pause"}, "of type dict;"),
        ([pause(), "pause"], "Entry 1 of step"),
        ([[pause()]], "Entry 0 of step"),
        ([pause()] * (COMMANDS_MAX + 1), "17 commands"),
    ],
)
def test_what_is_no_answer_is_refused_with_the_reason(answer, why):
    """Wrong shapes and sizes never become bytes."""
    with pytest.raises(AnswerRefused, match=why):
        answer_of(Says(answer), ASKED)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([encode(pause()), b"\xff\xff\xff"], "are no AdaptationCommand"),
        ([AdaptationCommand(version=2).SerializeToString()], "version 2"),
        ([AdaptationCommand().SerializeToString()], "no version"),
        ([pause("x" * 70_000).SerializeToString()], "at most 16 commands with together 65536 bytes"),
        ([encode(pause(str(n))) for n in range(COMMANDS_MAX + 1)], "17 commands"),
        (
            [encode(pause("x" * (ANSWER_BYTES_MAX // 2))), encode(pause("y" * (ANSWER_BYTES_MAX // 2)))],
            "2 commands with",
        ),
    ],
)
def test_what_cannot_be_read_refuses_the_whole_answer(given, why):
    """Half of an answer is no decision of the strategy's."""
    with pytest.raises(AnswerRefused, match=why):
        read_commands(given)


def test_readable_commands_come_back_as_they_are_and_in_order():
    """Also those that the run will refuse. Commands that ask for nothing are left out."""
    commands = [cull("nobody"), AdaptationCommand(version=1), rate(float("nan")), pause(), pause()]
    read = read_commands(list(map(encode, commands)))
    assert list(map(encode, read)) == [encode(one) for one in commands if one.command_type]
