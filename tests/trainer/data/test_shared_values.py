"""Values that data share with workers by `multiprocessing`."""

from __future__ import annotations

import multiprocessing

from tests.trainer.data.test_own_state import Object, moved_and_back


def test_what_is_shared_with_workers_by_multiprocessing_is_put_back_in_place():
    """A difficulty or a count that a loop or a hook moves; the workers' copies are the same memory."""

    def make():
        return Object(value=multiprocessing.Value("d", 1.0), rows=multiprocessing.Array("i", [1, 2, 3]))

    held = make().value

    def move(one):
        one.value.value, one.rows[1] = 2.5, 7

    _, other, moved = moved_and_back(make, move)
    assert (other.value.value, list(other.rows), held.value) == (2.5, [1, 7, 3], 1.0)
    assert moved.keys() == {"one.value", "one.rows"}
