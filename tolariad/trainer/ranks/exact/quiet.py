"""DDP that sends nothing: its sums have another order for each layout of buckets and each number of ranks."""

from __future__ import annotations

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tolariad.trainer.errors import SetupRefused


def quieten(model: DistributedDataParallel, rank: int, ranks: int) -> None:
    """Take DDP's communication hook, so that no gradients are reduced but by the exact sum.

    The passes of a leaf are made under `no_sync()`: DDP then copies no gradients into buckets and back, broadcasts no
    buffers, and waits for nobody. The hook is called if a backward pass is made outside of a leaf, and raises.

    Raises SetupRefused if the module has another hook, counts gradients by itself, or belongs to another group.
    """
    group = model.process_group
    here = distributed.get_rank(group), distributed.get_world_size(group)
    if here != (rank, ranks):
        raise SetupRefused(
            f"rank {rank} of {ranks} was given, but DDP's process group says rank {here[0]} of {here[1]}"
        )
    if model.static_graph:
        raise SetupRefused(
            "DDP with static_graph=True counts the gradients of one micro-batch only: build it without, or train "
            "without exact sums"
        )
    try:
        # DDP refuses a hook whose annotations are text, as those of this module are.
        model.register_comm_hook(None, lambda _, bucket: _reduced_elsewhere(len(bucket.parameters())))
    except RuntimeError as error:
        raise SetupRefused(
            f"DDP takes no communication hook ({error}). Exact sums need it: leave yours out, or train without them"
        ) from error


def _reduced_elsewhere(parameters: int) -> torch.futures.Future[torch.Tensor]:
    raise SetupRefused(
        f"DDP was asked to reduce the gradients of {parameters} parameters outside of a leaf. With exact sums make "
        "every backward pass inside of `leaf(step, number)`, and evaluate under torch.no_grad()"
    )
