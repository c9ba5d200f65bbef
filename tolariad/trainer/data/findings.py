"""The findings about data, as sentences: what happens, why, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tolariad.trainer.data.feed import Bearing, Finding

_PATHS_MAX: Final = 3


def _few(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_PATHS_MAX])


def order_moved(place: str, differing: Sequence[str]) -> Finding:
    """Return what a resume says of an order whose state training moves while it is drawn."""
    return Finding(
        Bearing.NOTED,
        f"the order of the data moved with {_few(differing)} while it was drawn ({place}): it goes on from the state "
        "of the checkpoint",
    )


def order_differs(place: str) -> Finding:
    """Return what a resume says of an order that came out differently from the same state."""
    return Finding(
        Bearing.INEXACT,
        f"the order of the data was another one when it was drawn again from the same state ({place}): the batches "
        "that follow may be others than without the interruption",
    )


def batches_differ(epoch: int, batches: int) -> Finding:
    """Return what a resume says of batches that came out differently when they were loaded again."""
    return Finding(
        Bearing.INEXACT,
        f"the first {batches} batches of epoch {epoch} are others when they are loaded again: the data do not repeat "
        "themselves under the same seed, so the batches that follow may be others too",
    )


def unseen_by_workers(changed: Sequence[str]) -> Finding:
    """Return what is said of a data set that changes while workers live on with their copies."""
    return Finding(
        Bearing.INEXACT,
        f"{_few(changed)} has changed since the workers were started: they do not see it, because they live on with "
        "their copies (persistent_workers=True), but after a resume new ones would. Use persistent_workers=False",
    )


def workers_stay() -> Finding:
    """Return what is said of workers that live on and cannot be ended, because torch's private names are not used."""
    return Finding(
        Bearing.INEXACT,
        "the loader's workers live on (persistent_workers=True), and without torch's private names (TOLARIAD_TORCH) "
        "they cannot be ended when an epoch goes on in its middle: an item that uses its worker's number or seed may "
        "be another one after a resume. Use persistent_workers=False",
    )


def built_otherwise(paths: Sequence[str]) -> Finding:
    """Return what a resume says of a sampler that the script builds with other values."""
    return Finding(
        Bearing.NOTED,
        f"{_few(paths)} is built with another value than when the run began, and the new value is used: if the script "
        "did not change it, make it with a seed",
    )


def iterator_is_lost(iterators: Sequence[str], why: str) -> Finding:
    """Return what a resume says of an iterator that cannot be brought to its place."""
    return Finding(
        Bearing.INEXACT,
        f"the sampler holds an iterator ({_few(iterators)}), which cannot be brought to its place: {why}. The orders "
        "that follow may be others",
    )


def holds_iterator(iterators: Sequence[str]) -> Finding:
    """Return what is said of data that hold an iterator and are loaded again at a resume."""
    return Finding(
        Bearing.INEXACT,
        f"the data hold an iterator ({_few(iterators)}), and nobody can save how far it is: a resumed run may see "
        "other data. Make the iterator in __iter__",
    )


def bypasses_order() -> Finding:
    """Return what is said of a loader whose batches do not come from its sampler as it is now."""
    return Finding(
        Bearing.INEXACT,
        "the loader does not draw from its sampler when it is iterated (it has made its iterator before, perhaps in "
        "__init__): a resumed run may see other data. Make the iterator in __iter__",
    )


def in_a_thread() -> Finding:
    """Return what is said of a loader that is read ahead by a thread of the user's own."""
    return Finding(
        Bearing.INEXACT,
        "a thread beside the training draws the data: it draws random numbers from the same generators at the same "
        "time, so a resumed run may see other ones. Use num_workers and prefetch_factor instead of the thread",
    )


def keeps_draws(item: str) -> Finding:
    """Return what is said of data that keep what they have drawn. `item`: one that shows it."""
    return Finding(
        Bearing.INEXACT,
        f"{item} is another one when a new process reads it first, under the same seed: the data keep what they have "
        "drawn, as a cache of augmented items does, and a new process draws it anew. A resumed run will see other "
        "data. Keep items as they are before the augmentation",
    )


def in_no_order() -> Finding:
    """Return what is said of workers whose batches come as they are done."""
    return Finding(
        Bearing.INEXACT,
        "in_order is False: batches come as workers finish them, so a resumed run will see them in another order. "
        "Leave in_order out",
    )


def holds_model() -> Finding:
    """Return what is said of a sampler whose order depends on the model."""
    return Finding(
        Bearing.NOTED,
        "the sampler holds a model, which training moves: the order of an epoch is drawn at its beginning and stored "
        "in checkpoints",
    )


def too_long() -> Finding:
    """Return what is said of an order that should be stored whole, and cannot be."""
    return Finding(
        Bearing.INEXACT,
        "the order of an epoch cannot be drawn again, and it is too long to be stored: after a resume within an epoch "
        "the batches that follow may be others",
    )


def moved_by_reading(paths: Sequence[str]) -> Finding:
    """Return what is said of a data set whose state changes when items are read, if each rank reads its own."""
    return Finding(
        Bearing.INEXACT,
        f"{_few(paths)} changes while items are read. With exact sums each rank reads its own batches, so what follows "
        "from it depends on the number of ranks",
    )
