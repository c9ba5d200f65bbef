"""The layout of the buckets of DistributedDataParallel, which torch has no public way to fix.

torch lays the gradients out in buckets, and after the first backward pass lays them out anew, in the order in which
they became ready. The order of a sum over three ranks or more depends on the place in a bucket, so a run that was
resumed would differ from one that was not.
"""

from __future__ import annotations

from typing import Any

from tolariad.trainer.torch_private.choice import private

_OFF = "the bits of a resumed run of three ranks or more may differ"


def fix_buckets(model: Any) -> bool | None:
    """Give a model in DistributedDataParallel the final layout of its buckets now. All ranks call this together.

    The order is that of the parameters. Later backward passes keep it. Return False if the model has that layout by a
    backward pass already, and None if this torch has no such function.
    """
    reducer = private(model, "reducer")
    push = private(reducer, "_push_all_rebuilt_params", _OFF)
    rebuild = private(reducer, "_rebuild_buckets", _OFF)
    if push is None or rebuild is None:
        return None
    push()
    return bool(rebuild())


def has_hook(model: Any) -> bool:
    """Return whether a communication hook is registered."""
    return bool(private(model, "_comm_hooks"))
