"""What torch has no public way for in DistributedDataParallel: the layout of its buckets, when it sends, how far it is.

torch lays the gradients out in buckets, and after the first backward pass lays them out anew, in the order in which
they became ready. The order of a sum over three ranks or more depends on the place in a bucket, so a run that was
resumed would differ from one that was not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tolariad.trainer.torch_private.choice import private

_OFF: Final = "the bits of a resumed run of three ranks or more may differ"


_UNNAMED: Final = "a rank that is silent within its own backward pass may not be named"
_SEND: Final = "_sync_buffers"


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


class _Around:
    """Stands for the method by which a model sends its buffers in a forward pass. A copy of the model has its own."""

    def __init__(self, model: Any, call: Callable[[Callable[[], None]], None]) -> None:
        self._model, self._call = model, call

    def __call__(self) -> None:
        self._call(lambda: getattr(type(self._model), _SEND)(self._model))

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._model, _SEND)


def around_buffers(model: Any, call: Callable[[Callable[[], None]], None]) -> None:
    """Let `call` make the call by which rank 0's buffers are sent to all ranks. Without the name nothing is done."""
    if private(type(model), _SEND) is not None:
        setattr(model, _SEND, _Around(model, call))


def begun_collectives(model: Any) -> Callable[[], int] | None:
    """Return what counts the collectives that this rank has begun in the group of a model in DistributedDataParallel.

    Any thread may call it. A sent or received tensor counts too. None if the model is not wrapped, or this torch has no
    such function.
    """
    if model is None or (count := private(model.process_group, "_get_sequence_number_for_group", _UNNAMED)) is None:
        return None

    def begun() -> int:
        try:
            return int(count())
        except RuntimeError:  # the group's own end, or a backend that does not count
            return 0

    return begun
