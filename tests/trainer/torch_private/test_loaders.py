"""A loader's iterator that outlives an epoch, in both ways."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from tests.trainer.torch_private.ways import way
from tolariad.trainer.torch_private import loaders

__all__ = ["way"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_persistent_workers_are_found_and_given_up(way):
    """The next epoch then begins with new ones; the public way keeps the old ones."""
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True, prefetch_factor=3)
    assert loaders.iterator_of(loader) is None
    iterator = iter(loader)
    assert [int(one) for one in iterator] == [0, 1, 2, 3]
    assert loaders.iterator_of(loader) is (iterator if way == "private" else None)
    loaders.set_prefetch(iterator, 1)
    assert iter(loader) is iterator
    # As torch counts them: what it has asked of its workers ahead.
    assert iterator._tasks_outstanding == (1 if way == "private" else 3)
    loaders.forget_iterator(loader)
    assert (iter(loader) is iterator) == (way == "public")
    loader._iterator = None
