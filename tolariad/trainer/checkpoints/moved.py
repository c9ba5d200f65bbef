"""Restore buffers that were added, removed or changed in shape or dtype during training.

Examples are caches that grow, and buffers that the first batch creates. Values cannot be copied into such a buffer, so
it is replaced. Promises: this is done only if the task built the same model and it has the same modules now. A changed
task or a model that grew is refused as before. Parameters are never replaced. A tensor with several names stays one
tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

from tolariad.trainer.torch_private import modules

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tolariad.trainer.checkpoints.loaded import Loaded


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


def buffer_tree(model: nn.Module, built: str) -> dict[str, Any]:
    """Return what distinguishes a model whose buffers changed during training from another model.

    `built` is the hash of the structure that the task created. In the result, `modules` stands for the names of all
    current modules, `held` are the buffers, and `empty` the names of buffers without a tensor.
    """
    names = "\n".join(name for name, _ in model.named_modules(remove_duplicate=False))
    return {
        "built": built,
        "modules": blake3(names.encode()).hexdigest(),
        "held": [name for name, _ in model.named_buffers(remove_duplicate=False)],
        "empty": [
            f"{prefix}.{name}" if prefix else name
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name, buffer in modules.buffers_of(module).items()
            if buffer is None
        ],
    }


def moved_buffers(model: nn.Module, built: str, loaded: Loaded) -> Moved:
    """Return the buffers that differ between model and `loaded`. Empty if the two are not the same model."""
    held = loaded.state["model"].get("buffers")
    here = buffer_tree(model, built)
    if held is None or (held["built"], held["modules"]) != (here["built"], here["modules"]):
        return Moved()
    live = dict(model.named_buffers(remove_duplicate=False))
    stored, empty = set(held["held"]), set(held["empty"])
    return Moved(
        put=tuple(n for n in held["held"] if n not in live or not _alike(live[n], loaded.model[n])),
        emptied=tuple(n for n in live if n in empty),
        removed=tuple(n for n in live if n not in stored and n not in empty),
    )


def _alike(live: torch.Tensor, stored: torch.Tensor) -> bool:
    return (live.shape, live.dtype) == (stored.shape, stored.dtype)


def put_buffers(model: nn.Module, loaded: Loaded, moved: Moved, device: torch.device) -> None:
    """Replace the differing buffers by those of `loaded`. The values of the other buffers are still to be copied."""
    stored = loaded.model
    live = dict(model.named_buffers(remove_duplicate=False))
    made = {id(stored[name]): tensor for name, tensor in live.items() if name not in moved.names}
    for name in moved.put:
        module, leaf = _place(model, name)
        tensor = stored[name]
        if id(tensor) not in made:
            made[id(tensor)] = tensor.to(device, copy=True)
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
