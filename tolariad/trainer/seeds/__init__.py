"""Seeds: named slots in a model, the blueprints of what grows in them, and the measurements that their gates need."""

from tolariad.trainer.seeds.blueprints import Blueprint
from tolariad.trainer.seeds.measures import (
    drift,
    gradient_norm,
    inputs_of,
    isolation_violations,
    latency_ms,
    non_finite,
)
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
    "gradient_norm",
    "host_parameters",
    "inputs_of",
    "isolation_violations",
    "latency_ms",
    "non_finite",
    "parameter_owners",
    "regrow",
    "sanity",
    "slots_of",
]
