"""Try a strategy without a run: packets of a made-up run, whose loss falls, stays, rises and is not finite.

Promises: each answer and each state is checked as a run checks it. The seeds of the packets never change their stage.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from tolariad.leyline import (
    AdaptationCommand,
    CommandRefused,
    CommandType,
    SeedState,
    SystemStatePacket,
    check_command,
)
from tolariad.leyline import SeedLifecycleStage as Stage
from tolariad.strategy.answer import answer_of, read_commands
from tolariad.strategy.finding import find_strategy
from tolariad.strategy.interface import call_optional
from tolariad.strategy.state import read_state, write_state

_LOSSES: Final = (2.0, 1.2, 0.8, *(0.7,) * 8, 3.5, 3.5, 3.5, math.nan)


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rehearsal.

    `commands` is the number of commands that changed something, `slowest_ms` the time of the slowest answer.
    """

    packets: int
    commands: int
    slowest_ms: float
    state_bytes: int


def rehearse(name: str) -> Rehearsal:
    """Ask the strategy about every packet. Raises what a run would say as the reason for no answer."""
    strategy, _ = find_strategy(name)
    commands, slowest_s, state = 0, 0.0, b""
    packets = list(sample_packets())
    for packet in packets:
        began = time.perf_counter()
        given = answer_of(strategy, packet)
        slowest_s = max(slowest_s, time.perf_counter() - began)
        commands += sum(_is_valid(command, packet) for command in read_commands(given))
        state = write_state(call_optional(strategy, "state_dict"))
        call_optional(strategy, "prepare_rollback", read_state(state))
        call_optional(strategy, "load_state_dict", read_state(state))
    return Rehearsal(packets=len(packets), commands=commands, slowest_ms=1e3 * slowest_s, state_bytes=len(state))


def _is_valid(command: AdaptationCommand, packet: SystemStatePacket) -> bool:
    check_command(command)
    names = [seed.seed_id for seed in packet.seed_states]
    if command.command_type == CommandType.COMMAND_SEED and command.target_seed_id not in names:
        raise CommandRefused(f"COMMAND_SEED names the seed {command.target_seed_id!r}; there is {', '.join(names)}.")
    return True


def sample_packets() -> Iterator[SystemStatePacket]:
    """Yield the packets."""
    for epoch, loss in enumerate(_LOSSES, 1):
        yield SystemStatePacket(
            version=1,
            current_epoch=epoch,
            validation_loss=loss,
            training_loss=loss,
            timestamp_ns=1_700_000_000_000_000_000 + epoch,
            global_step=100 * epoch,
            training_metrics={
                "validated": 1.0,
                "branch": 0.0,
                "epochs": 100.0,
                "learning_rate": 0.001,
                "gradient_norm": 1.0,
                "skipped_steps": 0.0,
                "epoch_steps": 100.0,
                "findings": 0.0,
                "rollbacks": 0.0,
                "conservative": 0.0,
            },
            seed_states=[
                SeedState(seed_id="first", stage=Stage.SEED_STAGE_DORMANT, layer_depth=1),
                SeedState(seed_id="second", stage=Stage.SEED_STAGE_TRAINING, layer_depth=2, age_epochs=epoch),
            ],
            packet_id=f"packet-{epoch}",
            training_run_id="rehearsal",
            source_subsystem="tolaria",
        )
