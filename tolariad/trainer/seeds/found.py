"""Find the slots of a run before it begins, and refuse what cannot have seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.seeds.garden import Garden
from tolariad.trainer.seeds.optimizers import SeedOptimizers
from tolariad.trainer.seeds.places import attach, slots_of
from tolariad.trainer.seeds.registry import source_of
from tolariad.trainer.seeds.slot import SeedSlot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from tolariad.core.calc.settings.model import Settings
    from tolariad.trainer.architecture import Ledger
    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.optim.owners import Owner


def find_slots(task: Any, model: nn.Module, settings: Settings) -> dict[str, SeedSlot]:
    """Attach the slots of the task and the configuration. Return all of the model, in module order.

    Raises SetupRefused, also for a run that could not train seeds.
    """
    declared = getattr(task, "seed_slots", None)
    if callable(declared):
        declared(model)
    for name, place in settings.seeds.slots.items():
        attach(model, place, SeedSlot(name))
    slots = slots_of(model)
    if slots:
        _refuse_impossible(task, settings)
    if len(slots) > st.SEED_SLOTS_MAX:
        raise SetupRefused(f"the model has {len(slots)} slots for seeds; a run can have {st.SEED_SLOTS_MAX}")
    for slot in slots.values():
        if slot.seed is not None:
            raise SetupRefused(
                f"slot {slot.name} of the model holds a seed that this run did not germinate; give it an empty slot"
            )
        slot.enter(Stage.DORMANT)
    return slots


def _refuse_impossible(task: Any, settings: Settings) -> None:
    if settings.compile:
        raise SetupRefused(
            "the model has slots for seeds, and compile is true. The compiler may give other bits for every stage of a "
            "seed, and a germination must change no bit. Set compile to false, or remove the slots"
        )
    if callable(getattr(task, "training_step", None)):
        raise SetupRefused(
            "the model has slots for seeds, but the task makes its updates itself, by training_step. So the "
            "loss that a seed is to learn from is not known. Remove the slots, or give the task one loss(model, batch)"
        )


def _sources_of(settings: Settings) -> tuple[m.BlueprintSource, ...]:
    """Import the blueprints that the configuration names. Return those of files, with hashes. Raises SetupRefused."""
    with preserved_rng():
        found = [m.BlueprintSource(name=name, hash=source_of(name)) for name in settings.seeds.blueprints]
    return tuple(one for one in found if one.hash)


def garden_of(
    slots: Mapping[str, SeedSlot],
    ledger: Ledger,
    owners: list[Owner],
    rates: UnifiedLRController,
    *,
    settings: Settings,
) -> Garden:
    """Return the garden of a run, whose ledger it has joined. Raises SetupRefused if no seed of it could be trained.

    `owners` are the owners of the host.
    """
    optimizers = SeedOptimizers(settings.seeds, owners[0].optimizer, rates)
    if slots:
        optimizers.check()
        taken = {*(owner.name for owner in owners), *rates.names}
        for name in slots:
            if st.group_of(name) in taken:
                raise SetupRefused(
                    f"an optimizer or a parameter group is called {st.group_of(name)}, as that of the seed in slot "
                    f"{name} would be; rename it"
                )
    seed, blueprints = settings.rng_seed or 0, settings.seeds.blueprints
    sources = _sources_of(settings)
    return Garden(slots, ledger, owners, rates, optimizers, rng_seed=seed, blueprints=blueprints, sources=sources)
