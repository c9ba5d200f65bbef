"""Cautious AdamW of one flat tensor as one kernel of torch.compile; an option, because building it takes seconds.

Promises: one build serves every length (`dynamic=True`) and every step (what changes is passed in as tensors), so growth
and pruning never build again; differs from the other ways in rounding only. It must not know: groups, sharded tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.trainer.optim.cautious_rule import LIFT, LIFT_OTHERS, Counts, corrections

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.trainer.optim.cautious_rule import Member, Options

_built: dict[tuple[bool, bool], Callable[..., Any]] = {}
_PROBE: Final = 4096


def update(member: Member, options: Options) -> Counts:
    """Update one tensor, which must be contiguous; its `step` too. Counts stay on the device."""
    flat = [one.view(-1) for one in (member.parameter, member.gradient, member.exp_avg, member.exp_avg_sq)]
    numbers = _numbers(options, *corrections(member, options))
    kernel = _kernel(options)
    kept, considered = kernel(*flat, *numbers)
    member.step.add_(1.0)
    return Counts(kept, considered)


def probe(parameter: torch.Tensor, options: Options) -> None:
    """Build the kernel for tensors like this one. Raises RuntimeError where torch.compile does not work here."""
    flat = [torch.zeros(_PROBE, dtype=parameter.dtype, device=parameter.device) for _ in range(4)]
    try:
        _kernel(options)(*flat, *_numbers(options, 1.0, 1.0))
    except Exception as error:
        raise RuntimeError(
            f"compiled=True, but torch.compile does not work here ({type(error).__name__}: {error}); leave it off: the "
            "chunked way needs no compiler"
        ) from error


def _numbers(options: Options, step_size: float, root: float) -> list[torch.Tensor]:
    """What may change between two steps, as 0-dim float64 tensors on the host: as Python numbers they would be built in."""
    most = 1.0 / options.mask_eps if options.max_scale is None else min(options.max_scale, 1.0 / options.mask_eps)
    values = (
        options.lr * options.weight_decay,
        1 - options.beta1,
        options.beta2,
        options.eps * root,
        step_size * root,
        most,
    )
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def _kernel(options: Options) -> Callable[..., Any]:
    key = (options.cautious_weight_decay, options.live_mean)
    if key not in _built:
        _built[key] = torch.compile(formula(*key), dynamic=True, fullgraph=True)
    return _built[key]


def formula(cautious_weight_decay: bool, live_mean: bool) -> Callable[..., Any]:  # noqa: FBT001 - a key of the cache
    """The update as one function of flat tensors, to be compiled."""

    def formula(  # noqa: PLR0917 - tensors by name, as the compiler wants them
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
        decay: torch.Tensor,
        weight: torch.Tensor,
        beta2: torch.Tensor,
        eps: torch.Tensor,
        step_size: torch.Tensor,
        most: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lift = LIFT.get(parameter.dtype, LIFT_OTHERS)
        exp_avg.add_(weight * (gradient - exp_avg))
        exp_avg_sq.copy_(beta2 * exp_avg_sq + (1 - beta2) * gradient * gradient)
        mask = (gradient * lift * exp_avg > 0).to(parameter.dtype)
        kept = mask.sum(dtype=torch.float64)
        considered = (gradient != 0).sum(dtype=torch.float64) if live_mean else torch.full_like(kept, mask.numel())
        scale = torch.minimum(considered / kept.clamp(min=1.0), most)
        shrunk = decay * (parameter * lift * exp_avg > 0) if cautious_weight_decay else decay
        moved = (step_size * scale) * mask * exp_avg / (exp_avg_sq.sqrt() + eps)
        parameter.copy_(parameter * (1 - shrunk) - moved)
        return kept, considered

    return formula
