"""Wishes of the default policy, and the command for each.

Promises: the same wish at the same place of a run is the same command, byte for byte. So its id follows from the run,
the branch, the epoch, the rule and the seed, and its time is the packet's. Every command passes `check_command`.
"""

from __future__ import annotations

import uuid
from typing import Final, TypeAlias

from msgspec import Struct

from tolariad.leyline import AdaptationCommand, CommandType
from tolariad.strategy.reading import Seen

ISSUED_BY: Final = "tamiyo"
_VERSION: Final = 1
_NANOSECONDS: Final = 1_000_000_000


class _Reasoned(Struct, frozen=True, kw_only=True):
    """`rule`: the name of the rule in docs/strategy.md. `reason`: its numbers, in a clause for people."""

    rule: str
    reason: str


class MoveSeed(_Reasoned, frozen=True, kw_only=True):
    """Carry out an operation of Leyline on this seed."""

    seed: str
    operation: int
    blueprint: str = ""


class LowerRate(_Reasoned, frozen=True, kw_only=True):
    """Lower the rate of the host's optimizer from `before` to `rate`."""

    before: float
    rate: float


class RollBack(_Reasoned, frozen=True, kw_only=True):
    """Roll back to the newest promoted state."""


Wish: TypeAlias = MoveSeed | LowerRate | RollBack


def command_of(wish: Wish, seen: Seen) -> AdaptationCommand:
    """Return the command for a wish. An answer has at most one wish of one rule for one seed."""
    command = AdaptationCommand(
        version=_VERSION, issued_by=ISSUED_BY, annotations={"rule": wish.rule, "reason": wish.reason}
    )
    seconds, command.issued_at.nanos = divmod(seen.time_ns, _NANOSECONDS)
    command.issued_at.seconds = seconds
    target = ""
    if isinstance(wish, MoveSeed):
        target = command.target_seed_id = wish.seed
        command.command_type = CommandType.COMMAND_SEED
        command.seed_operation.operation = wish.operation  # type: ignore[assignment]  # the number of the enum
        command.seed_operation.blueprint_id = wish.blueprint
    elif isinstance(wish, LowerRate):
        command.command_type = CommandType.COMMAND_OPTIMIZER
        command.optimizer_adjustment.hyperparameters["lr"] = wish.rate
    else:
        command.command_type = CommandType.COMMAND_ROLLBACK
        command.rollback_payload["reason"] = wish.reason
    place = (seen.run, str(seen.branch), str(seen.epoch), wish.rule, target)
    command.command_id = str(uuid.uuid5(uuid.NAMESPACE_OID, "\0".join(place)))
    return command
