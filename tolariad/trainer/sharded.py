"""Models and tensors that torch has spread over several processes: how they are recognised, and refused.

Promises: nothing here imports torch.distributed. A wrapper or a sharded tensor anywhere in a model is found, and not in
the class of the whole model alone.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from torch import nn

_WRAPPERS: Final = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "FSDPModule"})
SHARDED: Final = (
    "is a DTensor, of which each process holds a part. tolariad does not train sharded tensors yet; train the whole "
    "model in every process, wrapped in DistributedDataParallel (docs/ranks.md)"
)


def is_sharded(value: Any) -> bool:
    """Return whether a value is a DTensor. Nobody has one before its module is imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_of(tensor: Any) -> Any:
    """Return the part of a DTensor that this process holds; any other tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def refuse_spread(model: nn.Module) -> None:
    """Raise SetupRefused if a module of the model is wrapped for several processes, or a tensor of it is sharded."""
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                part = f"{name}, a part of the model," if name else "the model"
                raise SetupRefused(
                    f"{part} is wrapped in {kind.__name__}, which tolariad does not train: return the model itself. "
                    "For several processes wrap the whole model in DistributedDataParallel, start the program by "
                    "torchrun and call Tolaria(...).run(...) (docs/ranks.md)"
                )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_sharded(tensor):
            raise SetupRefused(f"{name} {SHARDED}")
