"""The buffers and parameters that a module holds itself, and the base classes of torch's layers.

A module keeps them in private dictionaries. The public way asks `named_buffers` and `named_parameters`. They leave out
names that hold no tensor, so buffers that are None are not known there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, Final, Self

from torch import Tensor, nn
from torch.nn.modules import batchnorm, conv, instancenorm

from tolariad.trainer.torch_private.choice import private


def _named_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    return dict(module.named_buffers(recurse=False, remove_duplicate=False))


def _named_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _own(name: str, public: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    """Return the fastest function that reads this attribute of a module, which every step calls; else `public`."""
    return (
        public
        if private(nn.Module(), name, "a module's tensors are listed anew in every step") is None
        else attrgetter(name)
    )


# The module's own buffers by name. The public way leaves out those that are None. In a scripted module it is no dict:
# it has no `get`, and cannot be iterated over but by `keys()`.
buffers_of: Final[Callable[[nn.Module], Mapping[str, Tensor | None]]] = _own("_buffers", _named_buffers)
# The module's own parameters by name. The public way leaves out those that are None.
parameters_of: Final[Callable[[nn.Module], Mapping[str, nn.Parameter | None]]] = _own("_parameters", _named_parameters)


def put_buffer(module: nn.Module, name: str, buffer: Tensor | None, *, transient: bool = False) -> None:
    """Let this be the module's buffer `name`, whether it has one already or not. Hooks of torch are not called.

    `transient`: `state_dict()` leaves it out. The public way calls the hooks that watch for new buffers, for those that
    the module did not have.
    """
    held: dict[str, Tensor | None] | None = private(module, "_buffers")
    if held is not None:
        held[name] = buffer
        if transient:
            module._non_persistent_buffers_set.add(name)
    elif hasattr(module, name):
        setattr(module, name, buffer)
    else:
        module.register_buffer(name, buffer, persistent=not transient)


def transient_names(module: nn.Module) -> list[str]:
    """Return the sorted names of the module's own buffers that `state_dict()` leaves out. None of them is None.

    The public way compares the names with those of a `state_dict()`.
    """
    held, marked = buffers_of(module), private(module, "_non_persistent_buffers_set")
    left_out: Collection[str] = held.keys() - module.state_dict().keys() if marked is None else marked
    return sorted(name for name in left_out if name in held and held[name] is not None)


def put_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Let this be the module's parameter `name`, in the place that it has in the order of parameters.

    The public way sets the attribute, which a module may forbid.
    """
    held: dict[str, Any] | None = private(module, "_parameters")
    if held is None:
        setattr(module, name, parameter)
    else:
        held[name] = parameter


class ToldOfMoves(nn.Module):
    """A module that is told when its tensors are moved or converted.

    There is no public way: a module without it must look at its tensors itself.
    """

    def moved(self, to: Callable[[Tensor], Tensor]) -> None:
        """Torch has applied `to` to every tensor of this module. A subclass overrides this."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.moved(fn)
        return self


def _base(owner: Any, name: str, *public: type[nn.Module]) -> tuple[type[Any], ...]:
    """Return the private base class, which covers a user's subclasses of it too; else the public classes."""
    found = private(owner, name)
    return public if found is None else (found,)


# Layers that keep statistics of what passes, and write them without a change of the tensors' version.
BATCH_NORMS: Final = _base(batchnorm, "_BatchNorm", nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS: Final = _base(instancenorm, "_InstanceNorm", nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
NORMS: Final = _base(batchnorm, "_NormBase", *BATCH_NORMS, *INSTANCE_NORMS)
TRANSPOSED_CONVOLUTIONS: Final = _base(
    conv, "_ConvTransposeNd", nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
)
CONVOLUTIONS: Final = _base(conv, "_ConvNd", nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED_CONVOLUTIONS)
