"""The measurements of a seed in a run, for its gates and for the report at an epoch's end.

Promises: a measurement changes nothing. Every number is finite, or -1 if it was not measured.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from tolariad.core import state as st
from tolariad.core.calc.seeds.gates import NOT_MEASURED, SeedMeasure
from tolariad.trainer.data.randomness import derived_seed
from tolariad.trainer.seeds import measures

if TYPE_CHECKING:
    from torch import nn

    from tolariad.trainer.seeds.plots import Plot
    from tolariad.trainer.setup import Setup


def measure(setup: Setup, plot: Plot, step: int) -> SeedMeasure:
    """Measure the slot after step `step`; without a seed, that it is empty.

    No batch is at hand at a boundary. So drift and latency are measured on noise of the shape of the slot's input.
    Raises what the seed's module raises.
    """
    found, module = measure_standing(setup, plot, step), plot.slot.seed
    if module is None:
        return found
    noise = _noise(setup, plot)
    with setup.forward():
        drift, latency_ms = measures.drift(module, noise), measures.latency_ms(module, noise)
    return replace(found, drift=drift if math.isfinite(drift) else NOT_MEASURED, latency_ms=latency_ms)


def measure_standing(setup: Setup, plot: Plot, step: int) -> SeedMeasure:
    """Measure what needs no pass of the seed."""
    found, module = measure_slot(plot, step), plot.slot.seed
    if module is None:
        return found
    return replace(
        found,
        gradient_norm=plot.gradient_norm,
        learning_rate=setup.rates.rates()[st.group_of(plot.name)],
        parameters=_elements(module),
        dropped=plot.dropped,
        isolation_violations=len(_shared(setup, plot, module)),
        non_finite=measures.non_finite(module),
    )


def measure_slot(plot: Plot, step: int) -> SeedMeasure:
    """Return where the slot stands after step `step`, whatever it holds."""
    return SeedMeasure(slot=plot.name, stage=plot.stage, alpha=plot.alpha, steps_in_stage=step - plot.entered)


def measure_isolated(setup: Setup, plot: Plot, step: int) -> SeedMeasure:
    """Measure the slot, and follow the graph of the seed's output: a seed may use a parameter without being its owner.

    A pass of its own on noise shows that: the leaves of a graph rarely depend on values. Raises as `measure`.
    """
    found, module = measure(setup, plot, step), plot.slot.seed
    if module is None:
        return found
    with setup.forward():
        reached = measures.reached_by(module, _noise(setup, plot), _others(setup, plot))
    return replace(found, isolation_violations=len(_shared(setup, plot, module) | reached))


def measure_new(setup: Setup, plot: Plot, module: nn.Module) -> SeedMeasure:
    """Measure a seed that `sanity` has found to be the identity, and that is not planted."""
    with setup.forward():
        latency_ms = measures.latency_ms(module, _noise(setup, plot))
    return SeedMeasure(
        slot=plot.name,
        stage=plot.stage,
        parameters=_elements(module),
        drift=0.0,
        latency_ms=latency_ms,
        non_finite=measures.non_finite(module),
    )


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _shared(setup: Setup, plot: Plot, module: nn.Module) -> set[str]:
    """Return the names of the seed's parameters outside of it: its gradients would reach the host, or another seed."""
    own = {id(one) for one in module.parameters()}
    return {name for name, one in _others(setup, plot).items() if id(one) in own}


def _others(setup: Setup, plot: Plot) -> dict[str, nn.Parameter]:
    """Return the parameters of the host and of other seeds, by each of their names."""
    named = setup.model.named_parameters(remove_duplicate=False)
    return {name: one for name, one in named if not name.startswith(plot.prefix)}


def _noise(setup: Setup, plot: Plot) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derived_seed(setup.rng_seed, "probe", plot.name))
    example = plot.slot.example(plot.input_shape, plot.input_dtype)
    return torch.randn(example.shape, generator=generator).to(example)
