"""Where slots are in a model: attach one to a module by its name, list them, say which parameter belongs to which.

Promises: `attach` changes neither the source of the model nor the name of any parameter or buffer. A deep copy of the
model has slots of its own. The slot acts on the module's output if that is a tensor. Of a tuple, list, dict or
dataclass, also within another, it takes the first floating-point tensor with dimensions (not a loss). The rest of the
output is passed on, and so is an output without such a tensor.

Limits: the slot acts when the module is *called*. torch runs no hooks if code calls `module.forward(...)` itself, or
uses the module's parameters only. A module that is called several times has the slot after each call.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from tolariad.core.calc.text.nearest import KEYS_ALIKE, all_near, did_you_mean
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.seeds.slot import SeedSlot
from tolariad.trainer.torch_private.hooks import of_forward

_CHILD: Final = "seed_slot_"
_NAMED_MAX: Final = 3
# If the forward method of a module uses one of these names, it probably calls every child; a slot must not be one.
_ITERATING: Final = frozenset({"children", "named_children", "modules", "named_modules", "_modules"})


class _Through:
    """The forward hook of a place. An object, so that a deep copy of the model refers to the copy's slot."""

    def __init__(self, slot: SeedSlot) -> None:
        self.slot = slot

    def __call__(self, module: nn.Module, arguments: Any, output: Any) -> Any:  # noqa: ARG002 - torch's signature
        """Return the output with its first floating-point tensor sent through the slot."""
        return _with_first(output, self.slot)[1]


def attach(model: nn.Module, qualified_name: str, slot: SeedSlot) -> SeedSlot:
    """Put `slot` after the module of this name, and return it; "" is the model itself.

    If the place has a slot of this name, that one is returned and `slot` is not used. So a model may be given to a
    second run. The slot becomes a child of the module, as `seed_slot_<name>`. If the module calls each of its
    children, as nn.Sequential does, the slot becomes a child of its last one. Raises SetupRefused, with the nearest
    names if there is no module of this name.
    """
    target = _named(model, qualified_name)
    shown = (
        f"{qualified_name!r} ({type(target).__name__})" if qualified_name else f"the model ({type(target).__name__})"
    )
    if isinstance(target, SeedSlot):
        raise SetupRefused(f"seeds: {qualified_name!r} is a slot itself; attach slot {slot.name} to another module")
    if isinstance(target, nn.ModuleList | nn.ModuleDict) and type(target).forward is nn.Module.forward:
        inside = ", ".join(repr(_joined(qualified_name, child)) for child, _ in target.named_children()) or "nothing"
        raise SetupRefused(f"seeds: {shown} is never called, so a slot there sees no input; choose one of {inside}")
    if isinstance(target, torch.jit.ScriptModule):
        raise SetupRefused(f"seeds: {shown} is compiled by TorchScript, which cannot have a slot; attach before that")
    taken = next((hook.slot for hook in of_forward(target).values() if isinstance(hook, _Through)), None)
    if taken is not None and taken.name == slot.name:
        return taken
    if taken is not None:
        raise SetupRefused(f"seeds: {shown} has slot {taken.name} already; a place has one slot")
    for one in slots_of(model).values():
        if one is slot or one.name == slot.name:
            raise SetupRefused(f"seeds: this model has a slot {slot.name} already; choose another name")
    keeper = _keeper(target, shown)
    keeper.add_module(_CHILD + slot.name, slot)
    target.register_forward_hook(_Through(slot))
    near = next(target.parameters(), None)
    near = next(model.parameters(), None) if near is None else near
    if near is not None:
        slot.to(near.device)
    slot.train(target.training)
    slots_of(model)  # numbers all of them
    return slot


def slots_of(model: nn.Module) -> dict[str, SeedSlot]:
    """Return the slots of a model by name, in module order (that of `model.named_modules()`).

    It also sets `layer_depth` of each: how many layers of the host come before the slot in this order. A layer is a
    module without children. Slots inside seeds are not looked for. Raises SetupRefused if two slots have one name.
    """
    found: dict[str, SeedSlot] = {}
    depth = 0
    for _, module in _host_modules(model):
        if not isinstance(module, SeedSlot):
            depth += all(isinstance(child, SeedSlot) for child in module.children())
            continue
        if found.setdefault(module.name, module) is not module:
            raise SetupRefused(f"seeds: two slots of this model are named {module.name}; a name is of one slot")
        module.set_layer_depth(depth)
    return found


def parameter_owners(model: nn.Module) -> dict[str, str]:
    """Return, for each parameter of the model, the slot whose seed it belongs to; "" for the host's.

    A parameter of several names is listed by its first. This walks through the whole model: keep the answer until the
    model changes.
    """
    slots = {id(slot): slot.name for slot in slots_of(model).values()}
    owners: dict[str, str] = {}
    seen: set[int] = set()
    for prefix, module in _host_modules(model):
        whole = id(module) in slots
        for name, parameter in module.named_parameters(prefix, recurse=whole):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                owners[name] = slots.get(id(module), "")
    return owners


def host_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of the model that are in no seed, by name."""
    owners = parameter_owners(model)
    return {name: parameter for name, parameter in model.named_parameters() if not owners.get(name)}


def _host_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module in module order, without those inside slots. A shared module is yielded once."""
    seen: set[int] = set()

    def walk(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        yield name, module
        if not isinstance(module, SeedSlot):
            for child, inside in module.named_children():
                yield from walk(_joined(name, child), inside)

    yield from walk("", model)


def _named(model: nn.Module, name: str) -> nn.Module:
    """Return the module of this name. Raises SetupRefused."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if name in modules:
        found: nn.Module = modules[name]
        return found
    own = [one for one in modules if one and _CHILD not in one]
    # The end of the name is what people remember, so compare that too.
    near = [one for one in own if one.endswith(f".{name}")] or all_near(name, own, _NAMED_MAX, KEYS_ALIKE)
    hint = did_you_mean(", ".join(near[:_NAMED_MAX])) or "; see model.named_modules()"
    raise SetupRefused(f"seeds: the model has no module {name!r}{hint}")


def _keeper(target: nn.Module, shown: str) -> nn.Module:
    """Return the module that gets the slot as a child: the target, or the last child of one that calls each child."""
    keeper = target
    while _calls_every_child(keeper):
        children = [child for child in keeper.children() if not isinstance(child, SeedSlot)]
        if not children:
            raise SetupRefused(f"seeds: {shown} is empty, so it cannot hold a slot; choose the module before it")
        keeper = children[-1]
    return keeper


def _calls_every_child(module: nn.Module) -> bool:
    """Return whether the forward method may iterate over the children, as that of nn.Sequential does."""
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return True
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and not _ITERATING.isdisjoint(code.co_names) and any(True for _ in module.children())


def _joined(name: str, child: str) -> str:
    return f"{name}.{child}" if name else child


def _with_first(output: Any, slot: SeedSlot) -> tuple[bool, Any]:
    """Return whether a tensor was found, and the output with what the slot made of it."""
    if isinstance(output, Tensor):
        return (True, slot(output)) if output.is_floating_point() and output.dim() else (False, output)
    if isinstance(output, tuple | list):
        for index, item in enumerate(output):
            found, new = _with_first(item, slot)
            if found:
                return True, output if new is item else _replaced(output, index, new)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            item = getattr(output, field.name)
            found, new = _with_first(item, slot)
            if found:
                return True, output if new is item else dataclasses.replace(output, **{field.name: new})
    elif isinstance(output, dict):
        for key, item in output.items():
            found, new = _with_first(item, slot)
            if found and new is not item:
                output = copy.copy(output)
                output[key] = new
            if found:
                return True, output
    return False, output


def _replaced(items: tuple[Any, ...] | list[Any], index: int, new: Any) -> Any:
    """Return tuple, named tuple or list with another item at `index`."""
    changed = [*items[:index], new, *items[index + 1 :]]
    if hasattr(items, "_make"):
        return items._make(changed)
    return type(items)(changed)
