"""Rules for every answer of the default policy: the same bytes, valid commands and a small state for any packets."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategy.packets import PACKETS, packet, seed
from tests.strategy.test_default import SLOTS, course, flat
from tolariad.leyline import AdaptationCommand, SystemStatePacket, check_command
from tolariad.leyline import SeedLifecycleStage as Stage
from tolariad.leyline import SeedOperation as Op
from tolariad.strategy import STAGE_AFTER, DefaultStrategy, PolicyLimits, read_state, write_state

NAN = math.nan


def test_the_same_state_and_packet_give_the_same_bytes():
    """A re-run that asks again gets the same commands with the same ids; another branch gets other ids."""
    asked = flat(4, SLOTS)
    first, second = ([b"".join(map(_bytes, DefaultStrategy().step(one))) for one in asked] for _ in range(2))
    strategies = [DefaultStrategy(), DefaultStrategy(), DefaultStrategy()]
    for one in asked[:3]:
        for strategy in strategies:
            strategy.step(one)
    here, again = (strategy.step(asked[3])[0] for strategy in strategies[:2])
    there = strategies[2].step(packet(4, 1.0, SLOTS, branch=1.0))[0]

    ids = [one.command_id for asked_for in flat(60, SLOTS) for one in strategies[0].step(asked_for)]

    assert len(ids) == len(set(ids)) > 5
    assert first == second
    assert _bytes(here) == _bytes(again)
    assert here.issued_at.ToNanoseconds() == asked[3].timestamp_ns
    assert here.command_id != there.command_id
    assert here.seed_operation == there.seed_operation


def _bytes(command: AdaptationCommand) -> bytes:
    return command.SerializeToString(deterministic=True)


@given(st.lists(PACKETS, max_size=8))
def test_any_packets_give_valid_commands(packets):
    """NaN, infinity, no fields, unknown stages, epochs in any order: each command is valid, and the state stays small.

    A second policy that is saved and loaded between all packets gives the same bytes.
    """
    strategy, restarted = DefaultStrategy(), DefaultStrategy()
    for one in packets:
        commands = strategy.step(one)
        assert len(commands) <= PolicyLimits().commands_max
        assert len({command.command_id for command in commands}) == len(commands)
        names = {given.seed_id for given in one.seed_states}
        for command in commands:
            assert check_command(command).does
            assert command.annotations["rule"]
            assert command.annotations["reason"]
            assert command.target_seed_id in {*names, ""}
        assert list(map(_bytes, restarted.step(one))) == list(map(_bytes, commands))
        restarted.load_state_dict(read_state(write_state(restarted.state_dict())))
    assert json.loads(json.dumps(strategy.state_dict(), allow_nan=False)) is not None


def test_a_hundred_seeds_with_long_names_fit_into_the_state():
    """The largest packet: a hundred slots of a hundred sick seeds with names of 300 characters."""
    seeds = [seed(f"{n:03d}" * 100, Stage.SEED_STAGE_TRAINING, norm=NAN) for n in range(100)]
    strategy = DefaultStrategy()
    commands = strategy.step(packet(1, 1.0, seeds))
    strategy.step(packet(2, 1.0, [*seeds, *(seed(f"more{n}") for n in range(50))]))

    assert [one.target_seed_id for one in commands] == [one.seed_id for one in seeds[:4]]
    assert len(write_state(strategy.state_dict())) < 16 * 1024
    assert len(strategy.state_dict()["slots"]) == 100


def test_an_empty_packet_gives_no_command():
    """All its numbers are absent."""
    assert DefaultStrategy().step(SystemStatePacket()) == []


@pytest.mark.parametrize("state", [None, 3, [], {"best": "low"}, {"slots": {"a": {}}}])
def test_a_state_of_something_else_is_refused_and_changes_nothing(state):
    """Loading and voting refuse it alike."""
    strategy = DefaultStrategy()
    strategy.step(packet(1, 1.0, SLOTS))
    before = strategy.state_dict()
    with pytest.raises(ValueError, match=r"Expected|missing"):
        strategy.load_state_dict(state)
    with pytest.raises(ValueError, match=r"Expected|missing"):
        strategy.prepare_rollback(state)

    assert strategy.state_dict() == before


def test_every_operation_but_fine_tuning_leads_to_a_stage():
    """One table has the stage of each operation of a command."""
    left = set(Op.values()) - set(STAGE_AFTER) - {Op.SEED_OP_UNKNOWN}
    assert [Op.Name(one) for one in left] == ["SEED_OP_FINE_TUNE"]


def test_its_state_is_plain_and_its_limits_are_a_users_to_change():
    """A user's file may return a DefaultStrategy with other limits."""
    strategy = DefaultStrategy(PolicyLimits(patience=1, blueprints=("conv",)))
    given = course(flat(2, SLOTS), strategy)

    assert given == {2: [("plateau", "GERMINATE", "early", "conv")]}
    assert msgspec.json.decode(msgspec.json.encode(strategy.state_dict()))["grown_epoch"] == 2
