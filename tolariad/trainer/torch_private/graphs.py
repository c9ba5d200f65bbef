"""What torch tells of the graph of a loss: whether its backward pass was made already, and when one ends.

Torch frees what a node of the graph has saved when the pass goes through it, and refuses to show it afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.trainer.torch_private.choice import private

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_NODES_MAX: Final = 64
_FREED: Final = "already been freed"


def was_used(loss: Tensor) -> bool:
    """Return whether the backward pass of `loss` was made without `retain_graph`, as far as its last nodes can tell.

    If one of them still has what it saved, a part of the graph is unused. If none has saved anything, nothing is known.
    Then False.
    """
    nodes: list[Any] = [loss.grad_fn]
    found = False
    for node in nodes:  # which grows meanwhile
        if node is None or len(nodes) > _NODES_MAX:
            continue
        nodes += [one for one, _ in node.next_functions]
        for name in dir(node):
            if not name.startswith("_saved_") and name != "saved_tensors":
                continue
            try:
                if isinstance(getattr(node, name), torch.Tensor):
                    return False
            except RuntimeError as error:
                if _FREED not in str(error):
                    raise
                found = True
    return found


def is_second_pass(error: RuntimeError) -> bool:
    """Return whether torch raised this because a backward pass was made already."""
    return _FREED in str(error)


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Call `call` when the backward pass in progress ends, before what is queued later. Without the name never."""
    queue = private(private(torch.autograd.Variable, "_execution_engine"), "queue_callback")
    if queue is not None:
        queue(call)
