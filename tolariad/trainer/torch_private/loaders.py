"""The iterator that a torch DataLoader with persistent workers keeps from epoch to epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tolariad.trainer.torch_private.choice import private

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def iterator_of(loader: DataLoader[Any]) -> Any:
    """Return the iterator with the workers; None if there is none yet. The public way knows none.

    The first `iter` of an epoch makes or renews it, so its caller holds it then.
    """
    return private(loader, "_iterator")


def shut_down(iterator: Any) -> None:
    """End the workers of an iterator over a loader, if it has any.

    The public way waits until nobody holds it. The garbage collector may be the last one, in the middle of a step:
    then torch waits five seconds for each worker.
    """
    end = private(iterator, "_shutdown_workers")
    if end is not None:
        end()


def forget_iterator(loader: DataLoader[Any]) -> None:
    """End the loader's workers. It starts new ones with its next epoch.

    The public way does nothing: a new loader has no iterator.
    """
    iterator = iterator_of(loader)
    if iterator is not None:
        shut_down(iterator)
        loader._iterator = None


def set_prefetch(iterator: Any, batches: int | None) -> None:
    """Let the iterator load so many batches ahead for each worker, from its next epoch on.

    The public way does nothing: the number stays that of the loader when the workers began.
    """
    if private(iterator, "_prefetch_factor") is not None:
        iterator._prefetch_factor = batches
