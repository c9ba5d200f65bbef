"""The sentences for seeds and their slots."""

from __future__ import annotations

from typing import Any, Final

from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.calc.text.phrases import because, counted, last_name, listed
from tolariad.core.messages.sentences.givers import OrderSentences, OrderWords, Sentences, by


def _slots(e: m.SeedSlotsRegistered) -> str:
    if not e.slots:
        return "The model has no slots for seeds any more."
    return f"The model has {counted(len(e.slots), 'slot')} for seeds: {listed(one.name for one in e.slots)}."


def _move_ordered(e: m.OrderGiven) -> str:
    order: Any = e.order
    grown = f" from blueprint {last_name(order.blueprint)}" if order.blueprint else ""
    return f"The seed in slot {order.slot} is to move to {order.stage.name}{grown}, ordered{by(e)}"


def _moved(e: m.OrderActed) -> str:
    order: Any = e.order
    at, slot = f"from step {e.applied_before_step} on", order.slot
    match order.stage:
        case Stage.GERMINATED:
            added = counted(e.outcome_as(m.SeedMove).parameters_added, "parameter")
            return f"A seed germinated in slot {slot} {at}: {last_name(order.blueprint)}, {added}."
        case Stage.BLENDING:
            return f"The seed in slot {slot} is blended in over {counted(order.blend_steps, 'step')}, {at}."
        case Stage.FOSSILIZED:
            return f"The seed in slot {slot} is a permanent part of the model {at}."
        case Stage.CULLED:
            return f"The seed in slot {slot} was culled; its module is removed {at}{because(e.reason)}"
        case Stage.DORMANT:
            return f"Slot {slot} is free again {at}."
        case _:
            return f"The seed in slot {slot} is in {order.stage.name} {at}."


def _measured(e: m.SeedsMeasured) -> str:
    each = (f"{one.slot} {one.stage.name}, alpha {one.alpha:.4g}" for one in e.seeds)
    return f"Measured {counted(len(e.seeds), 'seed')} at the end of epoch {e.epoch}: {listed(each) or 'none'}."


ORDERS: Final[OrderSentences] = {
    m.MoveSeed: OrderWords(
        given=_move_ordered,
        acted=_moved,
        aborted=lambda e: f"The seed in slot {e.order.slot} did not move to {e.order.stage.name}{because(e.why)}",
    )
}
SENTENCES: Final[Sentences] = {
    m.SeedSlotsRegistered: _slots,
    m.SeedsMeasured: _measured,
}
