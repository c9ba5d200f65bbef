"""The meaning of each type of AdaptationCommand in a run, or the reason to refuse it.

Pure: a table, and checks that need nothing but the command. Promises: every type of the contract has a row. A command
that passes has the payload of its type, names that are not blank, and finite numbers. The run itself checks whether a
seed, an optimizer or an epoch exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from tolariad.core import messages as m
from tolariad.core.calc.health.budgets import FED_BREAKERS
from tolariad.leyline.serializer import VERSION, VersionMismatch
from tolariad.leyline.v1 import enums_pb2 as enums
from tolariad.leyline.v1.adaptation_pb2 import AdaptationCommand


class CommandRefused(ValueError):
    """The run does not obey this command. The text says why and what to do."""


class Meaning(Struct, frozen=True, kw_only=True):
    """The effect of a type of command.

    * `does`: a phrase that follows "the run".
    * `payload`: the member of `payload` that the command needs.
    * `may_lack_payload`: the command is valid without one, too.
    * `refused`: the reason why this version never obeys it, or "".
    """

    does: str
    payload: str = ""
    may_lack_payload: bool = False
    refused: str = ""


MEANINGS: Final[Mapping[int, Meaning]] = MappingProxyType(
    {
        enums.COMMAND_UNKNOWN: Meaning(does="changes nothing: the command must be empty"),
        enums.COMMAND_SEED: Meaning(
            does="germinates the seed `target_seed_id`, moves it to another stage, or culls it",
            payload="seed_operation",
        ),
        enums.COMMAND_ROLLBACK: Meaning(
            does="rolls back to `target_epoch`, or to the newest promoted checkpoint; pending orders are void",
            payload="rollback_payload",
            may_lack_payload=True,
        ),
        enums.COMMAND_OPTIMIZER: Meaning(does="sets hyper-parameters of one optimizer", payload="optimizer_adjustment"),
        enums.COMMAND_CIRCUIT_BREAKER: Meaning(
            does="opens or closes the breaker that the annotation `breaker` names", payload="circuit_breaker"
        ),
        enums.COMMAND_PAUSE: Meaning(does="pauses until an operator resumes it"),
        enums.COMMAND_EMERGENCY: Meaning(
            does="raises an emergency; the annotation `level` is NOTICE, ELEVATED, CONSERVATIVE or HALT"
        ),
        enums.COMMAND_STRUCTURAL_PRUNING: Meaning(
            does="does not obey it",
            refused="a strategy does not prune: the schedule and operators do; send no COMMAND_STRUCTURAL_PRUNING",
        ),
    }
)
# The levels by the name in the annotation `level`: the value's name in Leyline without its prefix.
LEVELS: Final[Mapping[str, m.Level]] = MappingProxyType(
    dict(zip(("NOTICE", "ELEVATED", "CONSERVATIVE", "HALT"), m.Level, strict=True))
)
_ROLLBACK_KEYS: Final = ("reason", "target_epoch", "tier")


def check_command(command: AdaptationCommand) -> Meaning:
    """Return what the command means. Raises CommandRefused, or VersionMismatch for another version of the contract."""
    if command.version != VERSION:
        raise VersionMismatch("AdaptationCommand", command.version)
    number = command.command_type
    meaning = MEANINGS.get(number)
    if meaning is None:
        raise CommandRefused(f"Version {VERSION} has no command type {number}; the last one is {max(MEANINGS)}.")
    name = enums.CommandType.Name(number)
    if meaning.refused:
        raise CommandRefused(f"{name} is refused: {meaning.refused}.")
    _check_payload(name, command.WhichOneof("payload") or "", meaning)
    if number == enums.COMMAND_UNKNOWN:
        return meaning
    if not command.command_id.strip():
        raise CommandRefused(f"{name} has no `command_id`; set a UUID, so that a repeated command acts once.")
    if command.execution_deadline_ms and not command.HasField("issued_at"):
        raise CommandRefused(f"{name} has a deadline but no `issued_at`; set it: the deadline is counted from it.")
    if number in _CHECKS:
        _CHECKS[number](command)
    return meaning


def _check_payload(name: str, given: str, meaning: Meaning) -> None:
    if given == meaning.payload or (meaning.may_lack_payload and not given):
        return
    what = f"carries `{given}`" if given else "carries no payload"
    needs = f"`{meaning.payload}`" if meaning.payload else "none"
    raise CommandRefused(f"{name} {what}; it needs {needs}.")


def _check_seed(command: AdaptationCommand) -> None:
    wanted = command.seed_operation
    if not command.target_seed_id.strip():
        raise CommandRefused("COMMAND_SEED names no seed; set `target_seed_id`.")
    if wanted.operation == enums.SEED_OP_UNKNOWN or wanted.operation not in enums.SeedOperation.values():
        raise CommandRefused(f"COMMAND_SEED has operation {wanted.operation}; version {VERSION} has 1 to 9.")
    if wanted.operation == enums.SEED_OP_GERMINATE and not wanted.blueprint_id.strip():
        raise CommandRefused("SEED_OP_GERMINATE names no blueprint; set `blueprint_id`.")
    _check_finite("COMMAND_SEED", wanted.parameters.items())


def _check_rollback(command: AdaptationCommand) -> None:
    given = dict(command.rollback_payload)
    unknown = sorted(set(given) - set(_ROLLBACK_KEYS))
    if unknown:
        raise CommandRefused(
            f"`rollback_payload` has the unknown key {unknown[0]!r}; keys are {', '.join(_ROLLBACK_KEYS)}."
        )
    tiers = [tier.value for tier in m.Tier]
    if "tier" in given and given["tier"] not in tiers:
        raise CommandRefused(f"`rollback_payload` has tier {given['tier']!r}; tiers are {', '.join(tiers)}.")
    # Numbers of a Struct are doubles.
    epoch = given.get("target_epoch", 0.0)
    if not isinstance(epoch, float) or not 0 <= epoch < 2**53 or epoch != math.floor(epoch):
        raise CommandRefused(f"`rollback_payload` has target_epoch {epoch!r}; it must be a whole number from 0 on.")


def _check_optimizer(command: AdaptationCommand) -> None:
    wanted = command.optimizer_adjustment.hyperparameters
    if not wanted:
        raise CommandRefused("COMMAND_OPTIMIZER has no `hyperparameters`; name at least one, such as `lr`.")
    _check_finite("COMMAND_OPTIMIZER", wanted.items())


def _check_breaker(command: AdaptationCommand) -> None:
    name = command.annotations.get("breaker", "")
    if name not in FED_BREAKERS:
        raise CommandRefused(
            f"COMMAND_CIRCUIT_BREAKER names the breaker {name!r}; the annotation `breaker` must be one of "
            f"{', '.join(FED_BREAKERS)}."
        )
    # Half-open follows from an open breaker's age, and is never set.
    if command.circuit_breaker.desired_state not in {enums.CIRCUIT_STATE_CLOSED, enums.CIRCUIT_STATE_OPEN}:
        raise CommandRefused("COMMAND_CIRCUIT_BREAKER must ask for CIRCUIT_STATE_OPEN or CIRCUIT_STATE_CLOSED.")


def _check_emergency(command: AdaptationCommand) -> None:
    level = command.annotations.get("level", "")
    if level not in LEVELS:
        raise CommandRefused(
            f"COMMAND_EMERGENCY has the level {level!r}; the annotation `level` must be one of {', '.join(LEVELS)}."
        )


def _check_finite(name: str, values: Iterable[tuple[str, float]]) -> None:
    for key, value in sorted(values):
        if not math.isfinite(value):
            raise CommandRefused(f"{name} has {key} = {value}; it must be a finite number.")


_CHECKS: Final[Mapping[int, Callable[[AdaptationCommand], None]]] = {
    enums.COMMAND_SEED: _check_seed,
    enums.COMMAND_ROLLBACK: _check_rollback,
    enums.COMMAND_OPTIMIZER: _check_optimizer,
    enums.COMMAND_CIRCUIT_BREAKER: _check_breaker,
    enums.COMMAND_EMERGENCY: _check_emergency,
}
