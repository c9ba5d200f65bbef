"""Commands of the strategy as orders of core: checked by Leyline's table, and translated.

Promises: every command becomes one StrategyCommand, with an order or with the sentence why it has none. Whether the run
can obey the order is core's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tolariad.core import messages as m
from tolariad.core.calc.bounds import ID_CHARACTERS_MAX, NOTE_CHARACTERS_MAX, refusal
from tolariad.core.calc.health.breaker import BreakerState
from tolariad.core.calc.seeds.stages import Stage
from tolariad.leyline import AdaptationCommand, CircuitBreakerState, CommandType, SeedOperation, check_command
from tolariad.leyline.commands import LEVELS, CommandRefused
from tolariad.leyline.serializer import MessageRefused
from tolariad.strategy import STAGE_AFTER

_NS_PER_MS: Final = 1_000_000
_REASON: Final = "reason"


def translated(command: AdaptationCommand) -> m.StrategyCommand:
    """Return the command as core takes it."""
    number = command.command_type
    kind = CommandType.Name(number) if number in CommandType.values() else f"command type {number}"
    id_ = command.command_id[:ID_CHARACTERS_MAX]
    try:
        check_command(command)
        if command.command_id != id_:
            raise CommandRefused(f"the `command_id` has more than {ID_CHARACTERS_MAX} characters; set a UUID.")
        order = _ORDERS[number](command)
        if (wrong := refusal(order)) is not None:
            raise CommandRefused(f"{wrong}.")
    except (CommandRefused, MessageRefused) as refused:
        return m.StrategyCommand(kind=kind, id=id_, refused=str(refused)[:NOTE_CHARACTERS_MAX])
    deadline = command.execution_deadline_ms
    expires = command.issued_at.ToNanoseconds() + deadline * _NS_PER_MS if deadline else 0
    return m.StrategyCommand(kind=kind, id=id_, order=order, expires=expires)


def _reason(command: AdaptationCommand, instead: str = "") -> str:
    return (command.annotations.get(_REASON, "") or instead)[:NOTE_CHARACTERS_MAX]


def _seed(command: AdaptationCommand) -> m.AdaptSeed:
    wanted = command.seed_operation
    stage = STAGE_AFTER.get(wanted.operation)
    if stage is None:
        name = SeedOperation.Name(wanted.operation)
        raise CommandRefused(f"{name} is not known to this run: a seed has no such stage.")
    return m.AdaptSeed(
        slot=command.target_seed_id,
        stage=Stage(stage),
        blueprint=wanted.blueprint_id,
        parameters=dict(wanted.parameters),
        reason=_reason(command),
    )


def _optimizer(command: AdaptationCommand) -> m.AdjustOptimizer:
    wanted = command.optimizer_adjustment
    return m.AdjustOptimizer(
        optimizer=wanted.optimizer_id, values=dict(wanted.hyperparameters), reason=_reason(command)
    )


def _rollback(command: AdaptationCommand) -> m.Rollback:
    given: dict[str, Any] = dict(command.rollback_payload)
    epoch = given.get("target_epoch")
    return m.Rollback(
        epoch=int(epoch) if epoch is not None else None,
        tier=m.Tier(given["tier"]) if "tier" in given else None,
        reason=_reason(command, str(given.get(_REASON, ""))),
    )


def _breaker(command: AdaptationCommand) -> m.SetBreaker:
    wanted = command.circuit_breaker
    is_open = wanted.desired_state == CircuitBreakerState.CIRCUIT_STATE_OPEN
    return m.SetBreaker(
        breaker=command.annotations["breaker"],
        state=BreakerState.OPEN if is_open else BreakerState.CLOSED,
        reason=_reason(command, wanted.rationale),
    )


def _emergency(command: AdaptationCommand) -> m.RaiseEmergency:
    return m.RaiseEmergency(level=LEVELS[command.annotations["level"]], reason=_reason(command))


def _pause(command: AdaptationCommand) -> m.Pause:
    return m.Pause(reason=_reason(command))


_ORDERS: Final[Mapping[int, Callable[[AdaptationCommand], m.Adaptation]]] = {
    CommandType.COMMAND_SEED: _seed,
    CommandType.COMMAND_ROLLBACK: _rollback,
    CommandType.COMMAND_OPTIMIZER: _optimizer,
    CommandType.COMMAND_CIRCUIT_BREAKER: _breaker,
    CommandType.COMMAND_PAUSE: _pause,
    CommandType.COMMAND_EMERGENCY: _emergency,
}
