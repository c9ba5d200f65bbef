"""The rules of the default policy, as one pure function of its state and what it sees.

Promises: `decide` never raises, whatever it sees. It returns at most `commands_max` wishes, and a state of bounded
size. It starts nothing in conservative mode, or in a run that is not stable. It makes a second change of one kind only
after a pause.

docs/strategy.md has the rules as a table.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tolariad.strategy.growing import advances, culls, germination
from tolariad.strategy.memory import PolicyLimits, PolicyState, gain, is_due, noted, shown
from tolariad.strategy.reading import Seen
from tolariad.strategy.wishes import LowerRate, RollBack, Wish

_NORMS_NEEDED: Final = 3
# Rates below this are not lowered: half of them might not be a normal float32.
_RATE_MIN: Final = 1e-30


def decide(state: PolicyState, seen: Seen, limits: PolicyLimits) -> tuple[PolicyState, tuple[Wish, ...]]:
    """Return the next state, and what to change."""
    known = noted(state, seen, limits)
    if (trouble := _trouble(state, known, seen, limits)) is not None:
        rule, reason = trouble
        return _calmed(known, seen, limits, rule, reason)
    removed = list(culls(known, seen, limits))[: limits.commands_max]
    if seen.is_conservative:
        return known, tuple(removed)
    culled = {one.seed for one in removed}
    moved = [one for one in advances(known, seen, limits) if one.seed not in culled]
    wishes: list[Wish] = list((*removed, *moved)[: limits.commands_max])
    if len(wishes) < limits.commands_max and (found := germination(known, seen, limits)) is not None:
        known, wish = found
        wishes.append(wish)
    return known, tuple(wishes)


def _trouble(former: PolicyState, state: PolicyState, seen: Seen, limits: PolicyLimits) -> tuple[str, str] | None:
    """Return the rule for a run that is not stable, and the reason."""
    if not seen.has_loss:
        return "divergence", f"the loss is not finite; the best was {shown(state.best)}"
    if state.diverging >= limits.in_a_row:
        return "divergence", f"the loss is {seen.loss:.6g}, the best was {shown(state.best)}"
    if state.own_rollbacks > former.own_rollbacks:
        return "after_rollback", "a rollback of this policy came before: the same rates would end the same way"
    if _skips_much(seen, limits) or seen.findings >= limits.findings:
        return "instability", f"{seen.skipped_share:.1%} of the updates were skipped, {seen.findings:g} findings"
    norms = sorted(former.norms)
    if seen.norm is not None and len(norms) >= _NORMS_NEEDED and _is_above_best(state, seen, limits):
        usual = norms[len(norms) // 2]
        if not seen.norm <= limits.norm_factor * usual:
            return "instability", f"the gradient norm is {seen.norm:.6g}, its median before was {usual:.6g}"
    return None


def _skips_much(seen: Seen, limits: PolicyLimits) -> bool:
    """Return whether too many updates were skipped. In a short epoch one skip is a large share, and tells nothing."""
    return seen.skipped >= limits.skipped_min and seen.skipped_share > limits.skipped_share


def _is_above_best(state: PolicyState, seen: Seen, limits: PolicyLimits) -> bool:
    """Return whether the loss is a regression: large gradients alone are no trouble."""
    if state.best is None or state.first is None:
        return False
    return gain(seen.loss, state.best, state.first) < -limits.worse


def _calmed(
    state: PolicyState, seen: Seen, limits: PolicyLimits, rule: str, reason: str
) -> tuple[PolicyState, tuple[Wish, ...]]:
    """Roll back from a divergence, or lower the rate. Nothing else is changed in a run that is not stable."""
    knows = seen.own_rollbacks is not None and seen.own_rollbacks < limits.rollbacks_max
    is_far = state.diverging >= limits.in_a_row and state.best_epoch > 0
    if rule == "divergence" and is_far and knows and is_due(state.rolled_epoch, seen.epoch, limits.pause):
        return replace(state, rolled_epoch=seen.epoch), (RollBack(rule=rule, reason=reason),)
    lower = (seen.rate or 0.0) * limits.lower_by
    is_high = lower >= max(_RATE_MIN, state.rate_highest * limits.rate_floor)
    if is_high and is_due(state.lowered_epoch, seen.epoch, limits.pause):
        wish = LowerRate(rule=rule, reason=reason, before=seen.rate or 0.0, rate=lower)
        return replace(state, lowered_epoch=seen.epoch), (wish,)
    return state, ()
