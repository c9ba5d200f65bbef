"""DDP that adds nothing up: its communication hook returns each bucket as it is, and sends nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tolariad.trainer.errors import SetupRefused


class Silent:
    """The hook of one DDP module. `unused`: the parameters that had no gradient in this rank's last leaf."""

    def __init__(self, model: DistributedDataParallel, rank: int, ranks: int) -> None:
        """Raises SetupRefused if the module has another hook, or belongs to another group."""
        group = model.process_group
        if (distributed.get_rank(group), distributed.get_world_size(group)) != (rank, ranks):
            raise SetupRefused(
                f"rank {rank} of {ranks} was given, but DDP's process group says rank {distributed.get_rank(group)} of "
                f"{distributed.get_world_size(group)}"
            )
        if model.static_graph:
            raise SetupRefused(
                "DDP with static_graph=True counts the gradients of one micro-batch only: build it without, or train "
                "without exact sums"
            )
        self.model = model
        self.unused: list[nn.Parameter] = []
        try:
            # Not the method: DDP refuses annotations that are text, as those of this module are.
            model.register_comm_hook(None, lambda _, bucket: self._hook(bucket))
        except RuntimeError as error:
            raise SetupRefused(
                f"DDP takes no communication hook ({error}). Exact sums need it: leave yours out, or train without them"
            ) from error

    def begin_last(self, used: Iterable[nn.Parameter]) -> None:
        """Prepare for the last leaf. `used`: the parameters whose gradient of an earlier leaf was taken away.

        DDP with find_unused_parameters=True raises if such a parameter has no gradient in the end. Give it -0.0, to
        which any gradient can be added without a change of its bits.
        """
        self.unused.clear()
        if self.model.find_unused_parameters:
            for one in used:
                # Both parts of a complex number: -0.0 as one number has the imaginary part 0.0.
                zero = complex(-0.0, -0.0) if one.is_complex() else -0.0
                one.grad = torch.full_like(one, zero, requires_grad=False)

    def _hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Return the bucket as it is. DDP calls it when all gradients of the bucket are there."""
        # DDP fills in zeros for a parameter without a gradient, which would be taken for one.
        self.unused.extend(one for one in bucket.parameters() if one.grad is None)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
