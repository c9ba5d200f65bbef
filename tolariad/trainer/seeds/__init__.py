"""Seeds: named slots in a model, the blueprints of what grows in them, and the measurements that their gates need."""

from tolariad.trainer.seeds.blueprints import Blueprint
from tolariad.trainer.seeds.places import attach, host_parameters, parameter_owners, slots_of
from tolariad.trainer.seeds.registry import blueprint_names, find_blueprint
from tolariad.trainer.seeds.slot import SeedSlot

__all__ = [
    "Blueprint",
    "SeedSlot",
    "attach",
    "blueprint_names",
    "find_blueprint",
    "host_parameters",
    "parameter_owners",
    "slots_of",
]
