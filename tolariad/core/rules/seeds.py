"""The rules of seeds: slots, moves from order to effect, the moves that follow by themselves, measurements."""

from __future__ import annotations

from math import isfinite
from typing import Final, Protocol

from msgspec.structs import asdict, replace

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.seeds.gates import NOT_MEASURED, SeedMeasure
from tolariad.core.calc.seeds.stages import Stage, is_legal
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(q.ReadsSeeds, st.HasTrainer, Protocol):
    """The slices that the rules of seeds read."""


_WHY: Final = {
    Stage.EMBARGOED: "a culled slot stays empty for a while",
    Stage.RESETTING: "the embargo has ended",
    Stage.DORMANT: "the slot is reset",
}


# -- orders ------------------------------------------------------------------------------------------------------------


def order_to_germinate(state: Reads, command: m.SeedGerminate) -> m.OrderGiven | m.Refusal:
    """Accept an order to germinate, or refuse it."""
    return q.move_seed(state, command.slot, Stage.GERMINATED, command.blueprint, command.parameters)


def order_to_advance(state: Reads, command: m.SeedAdvance) -> m.OrderGiven | m.Refusal:
    """Accept an order to advance, or refuse it."""
    return q.advance_seed(state, command.slot)


def order_to_cull(state: Reads, command: m.SeedCull) -> m.OrderGiven | m.Refusal:
    """Accept an order to cull, or refuse it."""
    return q.move_seed(state, command.slot, Stage.CULLED)


# -- reports -----------------------------------------------------------------------------------------------------------


def registered(state: Reads, report: m.ReadyReport, _: At[Reads]) -> Decision | None:
    """Record the slots with which a trainer was built, if they differ from the known ones and it may train."""
    # Blueprints are of interest only if the model has a slot.
    slots = report.slots[: st.SEED_SLOTS_MAX]
    found = (slots, report.blueprints if slots else ())
    if state.run.phase is st.Phase.FAILED or found == (state.seeds.slots, state.seeds.blueprints):
        return None
    return Decision((m.SeedSlotsRegistered(slots=found[0], blueprints=found[1]),))


def acts(state: Reads, order: m.MoveSeed, report: m.BoundaryOrderReport) -> m.Acts | m.ReportRefused:
    """Return the move with what the trainer found out of it, unless the stages of the journal do not allow it."""
    seed, measure = state.seeds.seed(order.slot), getattr(report, "measure", None)
    if not is_legal(seed.stage, order.stage):
        why = f"slot {order.slot} moved to {order.stage.name}; in the journal it is in {seed.stage.name}"
        return state.trainer.refused(why)
    move = m.SeedMove.of(
        report,
        measure=_finite(measure) if measure else None,
        epochs=state.progress.epoch_finished,
        validation_loss=state.progress.metrics.get("loss") if order.stage is Stage.BLENDING else None,
    )
    return m.Acts(m.MoveSeed.of(order, report, before=seed.stage), move)


def measured(state: Reads, report: m.SeedsMeasuredReport, _: At[Reads]) -> Decision | None:
    """Record the measurements at an epoch's end, once."""
    if report.epoch <= state.progress.epoch_finished or not report.seeds:
        return None
    found = tuple(map(_finite, report.seeds[: st.SEED_SLOTS_MAX]))
    return Decision((m.SeedsMeasured(epoch=report.epoch, seeds=found),))


def _finite(measure: SeedMeasure) -> SeedMeasure:
    """Return the measurements with -1 for each number that is not finite."""
    given = asdict(measure)
    wrong = {name: NOT_MEASURED for name, one in given.items() if isinstance(one, float) and not isfinite(one)}
    return replace(measure, **wrong) if wrong else measure


# -- without an order --------------------------------------------------------------------------------------------------


def follow(
    state: Reads, event: m.OrderActed | m.EpochFinished | m.RolledBack | m.QuarantineAdded, __: At[Reads]
) -> Decision | None:
    """Order the moves that are due by themselves: after a cull or an embargo, and for a seed that must not stay."""
    if isinstance(event, m.OrderActed) and not isinstance(event.order, m.MoveSeed):
        return None
    orders = tuple(
        m.OrderGiven(
            order=one,
            actor=m.Actor(program="tolariad", reason=_WHY.get(one.stage) or q.why_culled(state, one.slot)),
        )
        for one in q.due_moves(state)
    )
    return Decision(orders) if orders else None
