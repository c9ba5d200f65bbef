"""The leaves of an autograd graph: the tensors that a backward pass would give a gradient.

The graph is walked at every check and never remembered. A graph may depend on the data (a mixture of experts), and a
run that resumes must decide as the run that was never interrupted. A node costs about 0.3 us, a thousandth to a
hundredth of its backward pass.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.autograd.graph import get_gradient_edge

# The node that adds a gradient to a leaf. torch gives its type no public name.
_LEAF: Final = type(get_gradient_edge(torch.zeros((), requires_grad=True)).node)


def leaves_of(loss: torch.Tensor) -> dict[int, torch.Tensor]:
    """Return the leaves that a loss depends on, by `id`, in an order that depends on the graph alone.

    Parameters that a node hides are missing, such as those of a checkpoint with `use_reentrant=True`.
    """
    root = loss.grad_fn
    if root is None:
        return {id(loss): loss} if loss.requires_grad else {}
    found: dict[int, torch.Tensor] = {}
    # Holding the nodes keeps their wrappers alive: another node could otherwise get the same identity.
    seen, waiting = {root}, [root]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            if type(node) is _LEAF:
                leaf: torch.Tensor = node.variable  # type: ignore[attr-defined]  # torch does not declare it
                found[id(leaf)] = leaf
            else:
                waiting.append(node)
    return found
