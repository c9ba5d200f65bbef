"""Gate G0: what must hold of a new seed before it may germinate.

Promises: the check changes neither the seed, nor the host, nor any generator of random numbers. It runs copies of the
seed on numbers of a generator of its own.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.seeds.places import slots_of

_PROBE_SEED: Final = 20_150_901
# How far a new seed may be from the identity, in units of the dtype's precision. Rounding of one addition is half of
# one; a composition of two exact inverses needs a few.
_ROUNDING: Final = 8.0


def sanity(seed: Any, example: Tensor, host: nn.Module | None = None) -> str:
    """Return "" if the seed may germinate, else the reason as a sentence without its full stop.

    `example`: zeros of the shape, the dtype and the device of the slot's input. `host`: the model, whose parameters the
    seed must not share.

    A seed must have parameters that are finite and on the device. For random inputs it must return its input up to
    rounding, in train and in eval mode, the same each time, without writing to it. A gradient must reach a parameter.
    """
    if not isinstance(seed, nn.Module):
        return f"the blueprint returned a {type(seed).__name__}, not a torch.nn.Module"
    why = _parameters(seed, example, host)
    if why:
        return why
    try:
        with preserved_rng(), torch.enable_grad():
            return _behaviour(seed, example)
    except Exception as error:  # noqa: BLE001 - the seed is the user's code
        return f"the new seed raises {type(error).__name__} on an input of shape {tuple(example.shape)}: {error}"


def _parameters(seed: nn.Module, example: Tensor, host: nn.Module | None) -> str:
    """Judge the seed without running it."""
    tensors = {**dict(seed.named_parameters()), **dict(seed.named_buffers())}
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            return f"the seed's {name} is lazy: it gets its shape from the first input. Use the shape of the example"
        if tensor.device != example.device:
            return f"the seed's {name} is on {tensor.device}, its slot on {example.device}; build it there"
        if tensor.is_floating_point() and not bool(tensor.detach().isfinite().all()):
            return f"the seed's {name} is not finite"
    if not any(parameter.requires_grad for parameter in seed.parameters()):
        return "the seed has no parameter that can learn"
    if slots_of(seed):
        return "the seed has a slot itself"
    return _shared(seed, host) if host is not None else ""


def _shared(seed: nn.Module, host: nn.Module) -> str:
    """Say which parameter or buffer of the seed is memory of the host."""
    theirs = {_memory(tensor): name for name, tensor in [*host.named_parameters(), *host.named_buffers()]}
    for name, tensor in [*seed.named_parameters(), *seed.named_buffers()]:
        if tensor.numel() and (other := theirs.get(_memory(tensor))):
            return f"the seed's {name} is the model's {other}; a seed must have parameters of its own"
    return ""


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _behaviour(seed: nn.Module, example: Tensor) -> str:
    """Judge copies of the seed by running them."""
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    probe = torch.randn(example.shape, generator=generator).to(example)
    for training in (True, False):
        why = _identity(seed, probe, training=training)
        if why:
            return why
    trial = copy.deepcopy(seed).train()
    # A sum with random weights: with equal ones a norm in the seed would hide its gradient.
    weights = torch.randn(example.shape, generator=generator).to(example)
    (trial(probe) * weights).sum().backward()
    gradients = [parameter.grad for parameter in trial.parameters() if parameter.grad is not None]
    if not any(bool(gradient.count_nonzero()) for gradient in gradients):
        return "no gradient reaches any parameter of the seed, so it would never learn; is more than one factor zero?"
    return ""


def _identity(seed: nn.Module, probe: Tensor, *, training: bool) -> str:
    """Say in which way a new seed is not the identity."""
    before = probe.clone()
    outputs = []
    for _ in range(2):
        with preserved_rng():
            outputs.append(copy.deepcopy(seed).train(training)(probe))
    if not isinstance(outputs[0], Tensor):
        return f"the seed returns a {type(outputs[0]).__name__}, not a tensor"
    out = outputs[0].detach()
    for what in ("shape", "dtype", "device"):
        given, wanted = getattr(out, what), getattr(probe, what)
        if given != wanted:
            given, wanted = (tuple(given), tuple(wanted)) if what == "shape" else (given, wanted)
            return f"the seed returns {what} {given} for an input of {what} {wanted}"
    if not torch.equal(probe, before):
        return "the seed writes to its input, which is the host's; let it work on a copy"
    if not torch.equal(out, outputs[1]):
        return "the seed returns different values for the same input and the same random numbers"
    wide = torch.promote_types(probe.dtype, torch.float32)
    given = probe.to(wide)
    most = float((out.to(wide) - given).abs().amax())
    # Not "more than": a difference that is NaN must fail.
    # safety: new-seed-is-identity
    if not most <= _ROUNDING * torch.finfo(probe.dtype).eps * float(given.abs().amax()):
        mode = "train" if training else "eval"
        return f"the new seed is not the identity: in {mode} mode it changes its input by up to {most:.3g}"
    return ""
