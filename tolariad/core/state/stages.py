"""Announced stages as recorded in the journal: slice, apply table, and which orders announce a change.

A rollback takes back the stages that its target does not contain: the number of boundary orders that acted tells which.
"""

from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.state.fates import set_back
from tolariad.core.state.fold import ApplyTable

# An announcement is known again among this many.
STAGES_MAX: Final = 256


class Stages(msgspec.Struct, frozen=True):
    """Slice of RunState. `begun`: the newest stages of the current line, oldest first."""

    begun: Annotated[tuple[m.StageAt, ...], set_back("a stage that the target does not contain is taken back")] = ()

    @property
    def newest(self) -> m.StageAt | None:
        """Return the stage that the run is in; None before the first."""
        return self.begun[-1] if self.begun else None


class HasStages(Protocol):
    """A state with this slice."""

    @property
    def stages(self) -> Stages:
        """Return the announced stages."""


def announced(event: m.OrderActed) -> str:
    """Return the change that an order announces by acting, in words; "" if it announces none.

    The trainer's handlers of these orders let the detector begin anew.
    """
    match event.order:
        case m.BeginStage(why=why):
            return why
        case m.SetRate(group=group, value=value) as order:
            may_rise = order.may_raise(event.outcome_as(m.RateSet).before)
            return f"the rate of {group} was ordered to be {value:.6g}" if may_rise else ""
        case m.SetHyperparameters(values=values):
            return f"{', '.join(values)} of the optimizer changed"
        case m.MoveSeed(slot=slot, stage=Stage.GERMINATED):
            return f"a seed germinated in slot {slot}"
        case m.MoveSeed(slot=slot, stage=Stage.CULLED):
            return f"the seed in slot {slot} was culled"
        case m.ReleaseMasks(cycle=cycle):
            return f"the masks of cycle {cycle} were lifted"
        case _:
            return ""


def _acted(s: Stages, e: m.OrderActed, _: m.Cause) -> Stages:
    if not (why := announced(e)):
        return s
    epoch = e.outcome_as(m.StageBegan).epoch
    one = m.StageAt(storable(e.number), storable(e.applied_before_step), storable(epoch), why)
    return replace(s, begun=(*s.begun, one)[-STAGES_MAX:])


def stages_at(s: Stages, e: m.RolledBack) -> Stages:
    """Return the stages that the target of a rollback contains."""
    held = tuple(one for one in s.begun if one.number <= (e.orders or 0))
    return s if len(held) == len(s.begun) else Stages(begun=held)


APPLY: Final[ApplyTable] = {m.OrderActed: _acted}
