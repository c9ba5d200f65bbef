"""The hooks that torch holds for modules, tensors and optimizers.

Torch adds hooks by public functions, and keeps them in private dictionaries. The handle that it returns for a hook
leads to the same dictionary by public names. So the public way adds a hook, and removes it again at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch.optim.optimizer as optimizers

from tolariad.trainer.torch_private import choice
from tolariad.trainer.torch_private.choice import private

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Hooks = OrderedDict[int, Callable[..., Any]]
# No optimizer has an attribute without a name.
_OF_STEPS: Final = "" if choice.ONLY_PUBLIC else "_optimizer_step_pre_hooks"


def _nothing(*_: Any) -> None:
    """Do nothing."""


def _by_handle(register: Callable[..., Any]) -> Hooks:
    """Return the dictionary in which the public function `register` puts hooks."""
    handle = register(_nothing)
    hooks: Hooks = handle.hooks_dict_ref()
    handle.remove()
    return hooks


def of_forward(module: nn.Module) -> Hooks:
    """Return the hooks that are called after the module's forward pass."""
    found: Hooks | None = private(module, "_forward_hooks")
    return _by_handle(module.register_forward_hook) if found is None else found


def after_accumulation(leaf: Tensor) -> list[Callable[..., Any]]:
    """Return the hooks that are called after a gradient was added to `leaf.grad`, in their order."""
    # Torch sets the attribute to None until there is a hook.
    if private(type(leaf), "_post_accumulate_grad_hooks") is not None:
        return list((getattr(leaf, "_post_accumulate_grad_hooks", None) or {}).values())
    return list(_by_handle(leaf.register_post_accumulate_grad_hook).values())


def before_step(optimizer: Optimizer) -> Hooks:
    """Return the hooks that are called before each step of this optimizer. The order of the dictionary is theirs.

    It is the dictionary itself, in which hooks may be moved. Every step calls this.
    """
    try:
        # Its own: a wrapper that forwards attributes would return the hooks of another optimizer.
        hooks: Hooks = optimizer.__dict__[_OF_STEPS]
    except KeyError:
        return _by_handle(optimizer.register_step_pre_hook)
    return hooks


def _before_any_step() -> Hooks:
    found: Hooks | None = private(optimizers, "_global_optimizer_pre_hooks")
    return _by_handle(optimizers.register_optimizer_step_pre_hook) if found is None else found


# The hooks that are called before each step of every optimizer of the process.
BEFORE_ANY_STEP: Final = _before_any_step()
