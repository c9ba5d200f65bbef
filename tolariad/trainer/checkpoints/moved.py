"""Restore buffers that were added, removed or changed in shape or dtype during training.

Examples are caches that grow, and buffers that the first batch creates. Values cannot be copied into such a buffer, so
it is replaced. Promises: this is done only if the task built the same model and it has the same modules now. A changed
task or a model that grew is refused as before. Parameters are never replaced. A tensor with several names stays one
tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tolariad.trainer.checkpoints.capture import buffer_tree
from tolariad.trainer.torch_private import modules

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup


class Moved(NamedTuple):
    """Names of buffers that differ.

    They are missing or different in the model, or have no tensor in the checkpoint, or are unknown to it.
    """

    put: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Return all names."""
        return frozenset((*self.put, *self.emptied, *self.removed))


def moved_buffers(setup: Setup, loaded: Loaded) -> Moved:
    """Return the buffers that differ between model and `loaded`. Empty if the two are not the same model."""
    held = loaded.state["model"].get("buffers")
    here = buffer_tree(setup.model, setup.environment.model_hash)
    if held is None or (held["built"], held["modules"]) != (here["built"], here["modules"]):
        return Moved()
    live = dict(setup.model.named_buffers(remove_duplicate=False))
    stored, empty = set(held["held"]), set(held["empty"])
    return Moved(
        put=tuple(n for n in held["held"] if n not in live or not _alike(live[n], loaded.model[n])),
        emptied=tuple(n for n in live if n in empty),
        removed=tuple(n for n in live if n not in stored and n not in empty),
    )


def _alike(live: torch.Tensor, stored: torch.Tensor) -> bool:
    return (live.shape, live.dtype) == (stored.shape, stored.dtype)


def put_buffers(setup: Setup, loaded: Loaded, moved: Moved) -> None:
    """Replace the differing buffers by those of `loaded`. The values of the other buffers are still to be copied."""
    model, stored = setup.model, loaded.model
    live = dict(model.named_buffers(remove_duplicate=False))
    made = {id(stored[name]): tensor for name, tensor in live.items() if name not in moved.names}
    for name in moved.put:
        module, leaf = _place(model, name)
        tensor = stored[name]
        if id(tensor) not in made:
            made[id(tensor)] = tensor.to(setup.device, copy=True)
        modules.put_buffer(module, leaf, made[id(tensor)], transient=name in loaded.transient)
    for name in moved.emptied:
        module, leaf = _place(model, name)
        modules.put_buffer(module, leaf, None)
    for name in moved.removed:
        module, leaf = _place(model, name)
        delattr(module, leaf)


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    prefix, _, leaf = name.rpartition(".")
    return model.get_submodule(prefix), leaf
