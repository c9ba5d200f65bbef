"""The gates G0 to G5: what must hold of a seed before it moves to a stage.

Promises: pure functions of measurements and limits. A gate that fails gives the reason as a sentence without its full
stop. A measurement that is missing (-1) fails the gate that needs it.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final

from msgspec import Meta, Struct

from tolariad.core.calc.seeds.effect import SeedEffect
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.calc.settings import values as units
from tolariad.core.calc.text.phrases import counted

NOT_MEASURED: Final = -1.0


class Gate(enum.IntEnum):
    """The gates. Names and numbers are those of Leyline's SeedLifecycleGate."""

    G0_SANITY = 1
    G1_GRADIENT_HEALTH = 2
    G2_STABILITY = 3
    G3_INTERFACE = 4
    G4_SYSTEM_IMPACT = 5
    G5_RESET = 6


# The gate before each stage. A stage that is not here has none.
GATES: Final[Mapping[Stage, Gate]] = MappingProxyType(
    {
        Stage.GERMINATED: Gate.G0_SANITY,
        Stage.BLENDING: Gate.G1_GRADIENT_HEALTH,
        Stage.SHADOWING: Gate.G2_STABILITY,
        Stage.PROBATIONARY: Gate.G3_INTERFACE,
        Stage.FOSSILIZED: Gate.G4_SYSTEM_IMPACT,
        Stage.DORMANT: Gate.G5_RESET,
    }
)


class SeedMeasure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The measurements of one seed. Every number is finite; -1: not measured.

    * `gradient_norm`: the L2 norm of the seed's gradients in the newest update.
    * `steps_in_stage`: the updates since the last move.
    * `dropped`: the updates since then that were dropped because the seed's gradients were not finite.
    * `isolation_violations`: the number of times since germination that the seed's gradient reached the host.
    * `interface_violations`: the number of times since germination that the seed's output had another shape or dtype
      than its input.
    * `drift`: the L2 norm of the seed's output minus its input, divided by that of the input.
    * `latency_ms`: the time of the seed's forward pass.
    * `non_finite`: the number of elements of its parameters that are not finite.
    * `effect`: its effect on the validation, measured when a strategy has it fossilised.
    """

    slot: str
    stage: Stage = Stage.UNKNOWN
    alpha: float = 0.0
    gradient_norm: float = NOT_MEASURED
    learning_rate: float = NOT_MEASURED
    steps_in_stage: int = 0
    parameters: int = 0
    dropped: int = 0
    isolation_violations: int = 0
    interface_violations: int = 0
    drift: float = NOT_MEASURED
    latency_ms: float = NOT_MEASURED
    non_finite: int = 0
    effect: SeedEffect | None = None


class GateLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of the gates, which a seed must pass before its next stage."""

    min_steps: Annotated[
        units.Positive, Meta(description="G1, G3, G4: least updates in the stage before the seed may leave it")
    ] = 30
    max_gradient_norm: Annotated[
        units.PositiveCoefficient, Meta(description="G1: greatest gradient norm of the seed")
    ] = 100.0
    max_dropped: Annotated[
        units.Fraction, Meta(description="G1, G2: greatest share of updates dropped because they were not finite")
    ] = 0.05
    max_drift: Annotated[
        units.PositiveCoefficient | None,
        Meta(description="G2: greatest change of the slot's output by the seed, relative to its input; null: no limit"),
    ] = None
    max_latency_ms: Annotated[
        units.Milliseconds | None, Meta(description="G2: greatest time of the seed's forward pass; null: no limit")
    ] = None
    max_regression: Annotated[
        units.Coefficient,
        Meta(description="G4: greatest relative rise of the validation's loss since the blending began"),
    ] = 0.05


def judge(gate: Gate, measured: SeedMeasure, limits: GateLimits) -> str:
    """Return "" if the seed passes the gate, else the reason."""
    return _JUDGES[gate](measured, limits)


def judge_impact(before: float | None, now: float | None, max_regression: float) -> str:
    """Return "" if the loss of the validation has not risen too far since the blending began, else the reason.

    `max_regression`: the allowed rise, as a share of the loss before. The daemon judges this part of G4, because it
    holds the validations. A loss that is missing is not judged.
    """
    if before is None or now is None:
        return ""
    allowed = before + max_regression * abs(before)
    # Written so that a loss that is NaN fails.
    if now <= allowed:
        return ""
    return (
        f"the loss of the validation is {now:.6g}; before the blending it was {before:.6g}, so {allowed:.6g} is allowed"
    )


def _sanity(measured: SeedMeasure, _: GateLimits) -> str:
    if measured.parameters < 1:
        return "the seed has no parameters"
    if why := _not_finite(measured):
        return why
    if measured.drift < 0:
        return "the seed was not compared with the identity"
    if measured.drift > 0:
        return f"a new seed must hand on its input unchanged; this one changes it by {measured.drift:.3g}, relatively"
    return _interface_kept(measured)


def _gradient_health(measured: SeedMeasure, limits: GateLimits) -> str:
    if (why := _has_steps(measured, limits)) or (why := _violations(measured)) or (why := _kept_up(measured, limits)):
        return why
    norm = measured.gradient_norm
    if norm < 0:
        return "the seed's gradient norm was not measured"
    if norm == 0:
        return "the seed's gradients are all 0: it does not learn"
    if norm > limits.max_gradient_norm:
        return f"the seed's gradient norm is {norm:.4g}; the limit is {limits.max_gradient_norm:.4g}"
    return ""


def _stability(measured: SeedMeasure, limits: GateLimits) -> str:
    if measured.alpha != 1.0:
        return f"alpha is {measured.alpha:.4g}; the seed must be blended in completely first"
    if why := _kept_up(measured, limits):
        return why
    if why := _over(measured.drift, limits.max_drift, "the change of the slot's output by the seed"):
        return why
    return _over(measured.latency_ms, limits.max_latency_ms, "the time of the seed's forward pass in ms")


def _interface(measured: SeedMeasure, limits: GateLimits) -> str:
    return _has_steps(measured, limits) or _not_finite(measured) or _interface_kept(measured)


def _system_impact(measured: SeedMeasure, limits: GateLimits) -> str:
    return _has_steps(measured, limits) or _violations(measured) or _kept_up(measured, limits)


def _reset(measured: SeedMeasure, _: GateLimits) -> str:
    if measured.parameters:
        return f"the slot still holds {counted(measured.parameters, 'parameter')} of the culled seed"
    return "" if measured.alpha == 0.0 else f"alpha is {measured.alpha:.4g}; it must be 0 in an empty slot"


def _has_steps(measured: SeedMeasure, limits: GateLimits) -> str:
    if measured.steps_in_stage >= limits.min_steps:
        return ""
    spent = counted(measured.steps_in_stage, "update")
    return f"the seed has been in {measured.stage.name} for {spent}; it needs {limits.min_steps}"


def _violations(measured: SeedMeasure) -> str:
    if measured.isolation_violations:
        return f"the seed's gradients reached the host {counted(measured.isolation_violations, 'time')}"
    return _interface_kept(measured)


def _interface_kept(measured: SeedMeasure) -> str:
    if not measured.interface_violations:
        return ""
    times = counted(measured.interface_violations, "time")
    return f"the seed's output had another shape or dtype than its input {times}"


def _not_finite(measured: SeedMeasure) -> str:
    if not measured.non_finite:
        return ""
    return f"{counted(measured.non_finite, 'element')} of the seed's parameters are not finite"


def _kept_up(measured: SeedMeasure, limits: GateLimits) -> str:
    """Return why the seed does not learn as it should, or ""."""
    if why := _not_finite(measured):
        return why
    if measured.dropped <= limits.max_dropped * measured.steps_in_stage:
        return ""
    of = f"{measured.dropped} of {counted(measured.steps_in_stage, 'update')}"
    return f"{of} in {measured.stage.name} were dropped because the seed's gradients were not finite"


def _over(value: float, limit: float | None, what: str) -> str:
    if limit is None:
        return ""
    if value < 0:
        return f"{what} was not measured"
    return "" if value <= limit else f"{what} is {value:.4g}; the limit is {limit:.4g}"


_JUDGES: Final = {
    Gate.G0_SANITY: _sanity,
    Gate.G1_GRADIENT_HEALTH: _gradient_health,
    Gate.G2_STABILITY: _stability,
    Gate.G3_INTERFACE: _interface,
    Gate.G4_SYSTEM_IMPACT: _system_impact,
    Gate.G5_RESET: _reset,
}
