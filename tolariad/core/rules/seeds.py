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


def order_to_germinate(state: Reads, command: m.SeedGerminate) -> m.SeedMoveOrdered | m.Refusal:
    """Accept an order to germinate, or refuse it."""
    return q.move_seed(state, command.slot, Stage.GERMINATED, command.blueprint, command.parameters)


def order_to_advance(state: Reads, command: m.SeedAdvance) -> m.SeedMoveOrdered | m.Refusal:
    """Accept an order to advance, or refuse it."""
    return q.advance_seed(state, command.slot)


def order_to_cull(state: Reads, command: m.SeedCull) -> m.SeedMoveOrdered | m.Refusal:
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


def moved(state: Reads, report: m.BoundaryOrderReport, _: At[Reads]) -> Decision | None:
    """Record that a move acts, or that it was refused. An order that has ended is skipped."""
    waiting = state.boundary.find(report.order, m.MoveSeed)
    if waiting is None:
        return None
    at, order = waiting
    if report.refused:
        return Decision((m.SeedMoveAborted.of(order, why=report.refused).caused_by(at),))
    seed = state.seeds.seed(order.slot)
    if not is_legal(seed.stage, order.stage):
        why = f"slot {order.slot} moved to {order.stage.name}; in the journal it is in {seed.stage.name}"
        return Decision((state.trainer.refused(why),))
    return Decision((_moved(state, seed, replace(order, cause=at.seq), report).caused_by(at),))


def _moved(state: Reads, seed: st.Seed, order: m.MoveSeed, report: m.BoundaryOrderReport) -> m.SeedMoved:
    giver, measure = state.seeds.giver(order.cause), getattr(report, "measure", None)
    return m.SeedMoved.of(
        order,
        report,
        before=seed.stage,
        germination=order.number,
        number=state.boundary.acted + 1,
        measure=_finite(measure) if measure else None,
        epochs=state.progress.epoch_finished,
        validation_loss=state.progress.metrics.get("loss") if order.stage is Stage.BLENDING else None,
        by=giver.by,
        reason=giver.reason,
    )


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
    state: Reads, _: m.SeedMoved | m.EpochFinished | m.RolledBack | m.QuarantineAdded, __: At[Reads]
) -> Decision | None:
    """Order the moves that are due by themselves: after a cull or an embargo, and for a seed that must not stay."""
    orders = tuple(
        replace(one, actor=m.Actor(program="tolariad", reason=_WHY.get(one.stage) or q.why_culled(state, one.slot)))
        for one in q.due_moves(state)
    )
    return Decision(orders) if orders else None
