"""The sentences for seeds and their slots."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.calc.text.phrases import because, counted, last_name, listed
from tolariad.core.messages.sentences.givers import Sentences, by


def _slots(e: m.SeedSlotsRegistered) -> str:
    if not e.slots:
        return "The model has no slots for seeds any more."
    return f"The model has {counted(len(e.slots), 'slot')} for seeds: {listed(one.name for one in e.slots)}."


def _move_ordered(e: m.SeedMoveOrdered) -> str:
    grown = f" from blueprint {last_name(e.blueprint)}" if e.blueprint else ""
    return f"The seed in slot {e.slot} is to move to {e.stage.name}{grown}, ordered{by(e)}"


def _moved(e: m.SeedMoved) -> str:
    at = f"from step {e.applied_before_step} on"
    match e.stage:
        case Stage.GERMINATED:
            added = counted(e.parameters_added, "parameter")
            return f"A seed germinated in slot {e.slot} {at}: {last_name(e.blueprint)}, {added}."
        case Stage.BLENDING:
            return f"The seed in slot {e.slot} is blended in over {counted(e.blend_steps, 'step')}, {at}."
        case Stage.FOSSILIZED:
            return f"The seed in slot {e.slot} is a permanent part of the model {at}."
        case Stage.CULLED:
            return f"The seed in slot {e.slot} was culled; its module is removed {at}{because(e.reason)}"
        case Stage.DORMANT:
            return f"Slot {e.slot} is free again {at}."
        case _:
            return f"The seed in slot {e.slot} is in {e.stage.name} {at}."


def _measured(e: m.SeedsMeasured) -> str:
    each = (f"{one.slot} {one.stage.name}, alpha {one.alpha:.4g}" for one in e.seeds)
    return f"Measured {counted(len(e.seeds), 'seed')} at the end of epoch {e.epoch}: {listed(each) or 'none'}."


SENTENCES: Final[Sentences] = {
    m.SeedSlotsRegistered: _slots,
    m.SeedMoveOrdered: _move_ordered,
    m.SeedMoved: _moved,
    m.SeedMoveAborted: lambda e: f"The seed in slot {e.slot} did not move to {e.stage.name}{because(e.why)}",
    m.SeedsMeasured: _measured,
}
