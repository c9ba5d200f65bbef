"""A copy of a model to try guesses on: in float64 with random weights, if it runs so.

A weight that happens to be 0 hides nothing then, and rounding hides nothing. A model may refuse both. So three ways are
tried until it runs and gives numbers. The second has its own weights, each changed by up to a third, in float64. The
third has these in its own precision. A module that fails in float64 keeps its own weights and precision, if the rest of
the model runs then.

Promises: the model is not touched, and no generator advances outside of a fork. Nothing is run twice on one copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from tolariad.trainer.pruning.copies import copied, tensors_in, with_tensors
from tolariad.trainer.pruning.modules import has_values, opaque_kind
from tolariad.trainer.pruning.precision import WIDE, AnyPrecision, cast, widened
from tolariad.trainer.pruning.units import PruningRefused

SEED: Final = 3
# Of outputs of about 1; rounding leaves some 1e-15 in float64.
_TOLERANCE: Final = 1e-9
_NATIVE_TOLERANCE: Final = 1e-5


class _Way(Enum):
    """How the copy computes."""

    RANDOM = "random weights in float64"
    OWN = "own weights in float64"
    NATIVE = "own weights and precision"


class Trial(NamedTuple):
    """A copy that runs, and what its run has shown.

    * `opaque`: the modules whose inside is not followed, by name, each with the reason as a clause.
    * `used`: names of the parameters that the outputs depend on.
    * `idle`: names of modules with weights that were not called.
    """

    model: nn.Module
    inputs: tuple[Any, ...]
    tolerance: float
    opaque: Mapping[str, str]
    used: frozenset[str]
    idle: tuple[str, ...]


class _NotNumbers(ValueError):
    """The outputs hold a NaN."""


def trial_of(model: nn.Module, inputs: tuple[Any, ...]) -> Trial:
    """Return a copy of the model in evaluation mode on the CPU.

    Raises PruningRefused if it cannot be copied, or runs in no way.
    """
    errors: list[Exception] = []
    for way in _Way:
        try:
            return _attempt(model, inputs, way)
        except PruningRefused:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the model's own code raises
            errors.append(error)
    raise PruningRefused(f"the model cannot be traced: {type(errors[0]).__name__}: {errors[0]}") from errors[0]


def outputs_of(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors of the outputs. Draws of random numbers are the same in every call."""
    return tensors_in(run(model, inputs))


def run(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Call the model with copies of the inputs, which it may change."""
    with torch.random.fork_rng(devices=[]), AnyPrecision():
        torch.manual_seed(SEED)
        return model(*with_tensors(inputs, lambda one: one.detach().clone()))


def _attempt(model: nn.Module, inputs: tuple[Any, ...], way: _Way) -> Trial:
    given = with_tensors(inputs, lambda one: one.detach().cpu())
    given = given if way is _Way.NATIVE else widened(given)
    kept: dict[str, str] = {}
    while True:
        trial, entered = _prepared(model, way, kept), list[str]()
        try:
            seen = _observed(copied(trial), given, entered)
        except Exception as error:
            failed = entered[-1] if entered else ""
            if not failed or failed in kept or way is _Way.NATIVE:
                raise
            # Others of its kind would fail as well.
            kind = type(trial.get_submodule(failed))
            why = f"fails in float64 ({type(error).__name__}: {error})"
            kept |= {name: why for name, one in trial.named_modules() if type(one) is kind and name}
        else:
            return Trial(
                trial,
                given,
                _NATIVE_TOLERANCE if way is _Way.NATIVE else _TOLERANCE,
                {**seen.opaque, **kept},
                seen.used,
                seen.idle,
            )


# -- the copy ----------------------------------------------------------------------------------------------------------


def _prepared(model: nn.Module, way: _Way, kept: Mapping[str, str]) -> nn.Module:
    """Return a copy whose modules compute as `way` says, but those that are kept as they are."""
    trial = copied(model).to("cpu").eval()
    for module in trial.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            # The keys and values of a language model, kept for the next token: Torch-Pruning fails at them.
            config.use_cache = False
    if way is not _Way.NATIVE:
        trial._apply(lambda one: one.to(WIDE[one.dtype]) if one.dtype in WIDE else one)  # noqa: SLF001
    own = set[int]()
    for name in kept:
        module = copied(model.get_submodule(name)).to("cpu").eval()
        own |= {id(one) for one in module.parameters()}
        _keep(module)
        trial.set_submodule(name, module)
    with torch.no_grad():
        for parameter in trial.parameters():
            parameter.grad = None
            if has_values(parameter):
                parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
                if parameter.requires_grad and id(parameter) not in own:
                    _draw(parameter, way)
        for name, buffer in trial.named_buffers():
            if way is _Way.RANDOM and name.rpartition(".")[2] in {"running_mean", "running_var"}:
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return trial


def _draw(parameter: nn.Parameter, way: _Way) -> None:
    if way is _Way.RANDOM:
        parameter.copy_(0.3 * torch.randn(parameter.shape, dtype=parameter.dtype))
        return
    # A sign may be needed, for a logarithm or a root. A weight of 0 would hide what it is multiplied with.
    drawn = torch.rand(parameter.shape)
    parameter.mul_((0.7 + 0.6 * drawn).to(parameter.dtype))
    parameter.add_((0.01 + 0.1 * drawn).to(parameter.dtype) * (parameter == 0))


def _keep(module: nn.Module) -> None:
    """Let a module of a wider model compute in its own precision: inputs are narrowed to it, and outputs widened."""
    own = next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.float32)
    module.register_forward_pre_hook(
        lambda _, args, kwargs: cast((args, kwargs), {torch.float64: own}), with_kwargs=True
    )
    module.register_forward_hook(lambda *given: widened(given[-1]))


# -- its run -----------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    opaque: dict[str, str]
    used: frozenset[str]
    idle: tuple[str, ...]


def _observed(model: nn.Module, inputs: tuple[Any, ...], entered: list[str]) -> _Seen:
    """Run the model forwards and backwards. If it raises, `entered` ends with the innermost module that did."""
    called: dict[str, str] = {}
    with _following(model, entered, called):
        outputs = outputs_of(model, inputs)
    if any(one.is_floating_point() and one.isnan().any() for one in outputs):
        raise _NotNumbers("its outputs are not numbers")
    for one in outputs:
        if one.requires_grad:
            one.backward(torch.randn_like(one), retain_graph=True)
    parameters = {name: one for name, one in model.named_parameters() if has_values(one)}
    return _Seen(
        {name: why for name, why in called.items() if why},
        frozenset(name for name, one in parameters.items() if one.grad is not None and one.grad.any()),
        tuple(_idle(model, called)),
    )


def _idle(model: nn.Module, called: Mapping[str, str]) -> Iterator[str]:
    for name, module in model.named_modules():
        own = module.parameters(recurse=False)
        if name not in called and any(not has_values(one) or (one.dim() > 1 and one.grad is None) for one in own):
            yield name


@contextmanager
def _following(model: nn.Module, entered: list[str], called: dict[str, str]) -> Iterator[None]:
    """Note in `entered` the names of modules that are being computed, and in `called` those that were.

    `called` has the reason why a module's inside is not followed; "" if it is.
    """
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            # Its hooks would be compiled.
            called[name] = "is compiled by torch.jit"
            continue

        def enter(_: nn.Module, __: Any, name: str = name) -> None:
            entered.append(name)

        def leave(module: nn.Module, _: Any, output: Any, name: str = name) -> None:
            # The modules after it raised an error that the model's code has handled.
            del entered[len(entered) - 1 - entered[::-1].index(name) :]
            called[name] = called.get(name, "") or opaque_kind(module, output)

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def cut(model: nn.Module, names: Sequence[str]) -> list[tuple[Tensor, str]]:
    """Take the inside of modules out of the graph that autograd records. Return the list that their inputs will be in.

    Each of these tensors has the name of the module that it goes into.
    """
    into: list[tuple[Tensor, str]] = []
    for name in names:
        module = model.get_submodule(name)
        if isinstance(module, torch.jit.ScriptModule):
            continue

        def enter(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> Any:
            into.extend((one, name) for one in tensors_in((args, kwargs)) if one.grad_fn is not None)
            return with_tensors((args, kwargs), lambda one: one.detach())

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(lambda *given: with_tensors(given[-1], _apart))
    return into


def _apart(one: Tensor) -> Tensor:
    apart = one.detach()
    return apart.requires_grad_() if apart.is_floating_point() or apart.is_complex() else apart
