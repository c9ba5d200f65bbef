"""The measurements of a seed, for its gates and for the report at an epoch's end.

Promises: a measurement changes nothing: modules keep their mode, buffers and generators their values. Every number is
finite, or -1 if it was not measured.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from tolariad.core.seeds.gates import NOT_MEASURED, SeedMeasure
from tolariad.trainer.data.randomness import derived_seed, preserved_rng
from tolariad.trainer.seeds.garden import owner_name

if TYPE_CHECKING:
    from torch import nn

    from tolariad.trainer.seeds.plots import Plot
    from tolariad.trainer.setup import Setup

_TIMED: Final = 3


class _Probed(NamedTuple):
    """What one input made of noise shows. `violations`: 1 if the output has another shape or dtype."""

    drift: float
    latency_ms: float
    violations: int


def measure(setup: Setup, plot: Plot, step: int) -> SeedMeasure:
    """Measure the slot after step `step`; without a seed, that it is empty."""
    module = plot.slot.seed
    if module is None or plot.owner is None:
        return SeedMeasure(slot=plot.name, stage=plot.stage, alpha=plot.alpha, steps_in_stage=step - plot.entered)
    probed = _probed(setup, plot, module)
    return SeedMeasure(
        slot=plot.name,
        stage=plot.stage,
        alpha=plot.alpha,
        gradient_norm=plot.gradient_norm,
        learning_rate=setup.rates.rates()[owner_name(plot.name)],
        steps_in_stage=step - plot.entered,
        parameters=_elements(module),
        dropped=plot.dropped,
        isolation_violations=_shared(setup, plot, module),
        interface_violations=probed.violations,
        drift=probed.drift,
        latency_ms=probed.latency_ms,
        non_finite=_non_finite(module),
    )


def measure_new(setup: Setup, plot: Plot, module: nn.Module) -> SeedMeasure:
    """Measure a seed that was built for the slot and is not planted."""
    probed = _probed(setup, plot, module)
    return SeedMeasure(
        slot=plot.name,
        stage=plot.stage,
        parameters=_elements(module),
        interface_violations=probed.violations,
        drift=probed.drift,
        latency_ms=probed.latency_ms,
        non_finite=_non_finite(module),
    )


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _non_finite(module: nn.Module) -> int:
    counts = [(~torch.isfinite(one.detach())).sum() for one in module.parameters()]
    return int(torch.stack(counts).sum().item()) if counts else 0


def _shared(setup: Setup, plot: Plot, module: nn.Module) -> int:
    """Return how many parameters of the seed the host holds too: their gradients would reach it."""
    own = {id(one) for one in module.parameters()}
    return sum(
        id(one) in own
        for name, one in setup.model.named_parameters(remove_duplicate=False)
        if not name.startswith(plot.prefix)
    )


@torch.no_grad()
def _probed(setup: Setup, plot: Plot, module: nn.Module) -> _Probed:
    """Pass noise of the shape of the slot's input through the seed, in eval mode."""
    generator = torch.Generator().manual_seed(derived_seed(setup.rng_seed, "probe", plot.name))
    example = plot.slot.example(plot.input_shape, plot.input_dtype)
    noise = torch.randn(example.shape, generator=generator).to(example)
    modes = [(one, one.training) for one in module.modules()]
    times = []
    try:
        module.eval()
        with preserved_rng(), setup.forward():
            for _ in range(_TIMED):
                begun = time.perf_counter()
                out = module(noise)
                if noise.is_cuda:
                    torch.cuda.synchronize(noise.device)
                times.append(time.perf_counter() - begun)
    finally:
        for one, mode in modes:
            one.training = mode
    latency_ms = min(times) * 1e3
    if out.shape != noise.shape or not out.is_floating_point():
        return _Probed(NOT_MEASURED, latency_ms, 1)
    drift = ((out.double() - noise.double()).norm() / noise.double().norm()).item()
    return _Probed(drift if math.isfinite(drift) else NOT_MEASURED, latency_ms, 0)
