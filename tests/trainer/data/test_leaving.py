"""Workers end with an epoch that is left, and with the run; the garbage collector ends none.

It would do so some time later, in the middle of a step, and torch waits five seconds for each worker then.
"""

from __future__ import annotations

import gc
import multiprocessing

import pytest
from torch.utils.data import DataLoader

from tests.trainer.data.kinds import Around, Both, Holding, Scaling
from tests.trainer.data.stops import feed_over


@pytest.fixture
def workers():
    """The processes of this test; without those that another one may have left. The collector ends none meanwhile."""
    others = set(multiprocessing.active_children())
    gc.disable()
    yield lambda: set(multiprocessing.active_children()) - others
    gc.enable()


def _plain(**options):
    return DataLoader(Holding(), 4, shuffle=True, num_workers=1, **options)


def _stateful(**options):
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata (extra `data`) is not installed")
    return module.StatefulDataLoader(Holding(), 4, shuffle=True, num_workers=1, **options)


KINDS = {
    "a loader": _plain,
    "one of the user's class": lambda **options: Scaling(Holding(), 4, num_workers=1, **options),
    "around a loader": lambda **options: Around(_plain(**options)),
    "several loaders": lambda **options: Both(_plain(**options), _plain(**options)),
    "a stateful loader": _stateful,
}


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_worker_outlives_an_epoch_that_was_left_or_the_run(kind, persistent, workers):
    """Also while somebody holds the batches, as a traceback does. Those that the user wants to live on do."""
    _, feed = feed_over(KINDS[kind], persistent_workers=persistent)
    held = feed.epoch(1, 0)
    next(held)
    first = workers()
    assert first

    following = feed.epoch(2, 0)
    next(following)
    assert (workers() == first) is persistent
    assert len(workers()) == len(first)
    assert next(held, None) is None

    del following
    assert workers() == (first if persistent else set())
    feed.epoch(3, 0)
    feed.end_workers()
    assert not workers()


@pytest.mark.parametrize("kind", ["a loader", "a stateful loader"])
def test_an_exception_of_the_data_leaves_no_worker(kind, workers):
    """Its traceback holds the frames that hold the iterator. What a frame of the user's holds is the user's."""
    data, feed = feed_over(KINDS[kind])
    data.collate_fn = _failing
    with pytest.raises(OSError, match="no such image") as caught:
        next(feed.epoch(1, 0))
    assert caught.tb is not None
    assert not workers()


def _failing(items):
    raise OSError("no such image")
