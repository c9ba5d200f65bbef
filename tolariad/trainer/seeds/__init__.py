"""Seeds: named slots in a model, the blueprints of what grows in them, and the measurements that their gates need."""

from tolariad.trainer.seeds.blueprints import Blueprint
from tolariad.trainer.seeds.measures import drift, latency_ms, non_finite, reached_by
from tolariad.trainer.seeds.places import attach, host_parameters, parameter_owners, slots_of
from tolariad.trainer.seeds.registry import blueprint_names, find_blueprint
from tolariad.trainer.seeds.regrow import regrow
from tolariad.trainer.seeds.sanity import sanity
from tolariad.trainer.seeds.slot import SeedSlot

__all__ = [
    "Blueprint",
    "SeedSlot",
    "attach",
    "blueprint_names",
    "drift",
    "find_blueprint",
    "host_parameters",
    "latency_ms",
    "non_finite",
    "parameter_owners",
    "reached_by",
    "regrow",
    "sanity",
    "slots_of",
]
