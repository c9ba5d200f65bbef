"""The queue of telemetry against a plain model: what is kept, what is lost, and in which order it leaves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tolariad.core.calc.priorities import TelemetryPriority as P
from tolariad.core.calc.token_bucket import TokenBucket
from tolariad.telemetry.backlog import QUEUED, Backlog

OFFERS = some.tuples(some.sampled_from(QUEUED), some.just(0))
TAKES = some.tuples(some.just(None), some.integers(1, 5))


class Model:
    """One list of (priority, item), in the order of arrival."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.items: list[tuple[P, int]] = []
        self.dropped: Counter[P] = Counter()

    def offer(self, priority: P, item: int) -> None:
        self.items.append((priority, item))
        if len(self.items) > self.limit:
            # The oldest of the least important, the new one included, but an equal one stays behind it.
            least = min(one for one, _ in self.items)
            victim = next(one for one in self.items if one[0] == least)
            self.items.remove(victim)
            self.dropped[victim[0]] += 1

    def take(self, most: int) -> list[int]:
        taken = sorted(self.items, key=lambda one: -one[0])[:most]
        for one in taken:
            self.items.remove(one)
        return [item for _, item in taken]


@given(some.integers(1, 6), some.lists(OFFERS | TAKES, max_size=60))
def test_the_queue_is_as_the_model(limit, acts):
    """Any order of offers and takes: the same items leave, the same are lost, and the limit holds."""
    queue, model = Backlog(limit), Model(limit)
    for number, (priority, most) in enumerate(acts):
        if priority is None:
            assert queue.take(most) == model.take(most)
        else:
            queue.offer(priority, number)
            model.offer(priority, number)
        assert len(queue) == len(model.items) <= limit
        assert queue.dropped == model.dropped

    assert queue.take(100) == model.take(100)


@pytest.mark.parametrize(
    ("held", "new", "left"),
    [
        ([P.NORMAL, P.LOW, P.HIGH], P.HIGH, [0, 2, 9]),
        ([P.NORMAL, P.HIGH, P.NORMAL], P.HIGH, [1, 2, 9]),
        ([P.HIGH, P.HIGH, P.HIGH], P.HIGH, [1, 2, 9]),
        ([P.CRITICAL, P.HIGH, P.CRITICAL], P.CRITICAL, [0, 2, 9]),
        ([P.CRITICAL, P.CRITICAL, P.CRITICAL], P.HIGH, [0, 1, 2]),
        ([P.NORMAL, P.NORMAL, P.HIGH], P.LOW, [0, 1, 2]),
        ([P.LOW, P.LOW, P.HIGH], P.LOW, [1, 2, 9]),
    ],
)
def test_a_full_queue_drops_what_the_source_says(held, new, left):
    """HIGH takes the place of LOW, then of NORMAL, else of the oldest HIGH; nothing that is more important leaves."""
    queue = Backlog(len(held))
    for number, priority in enumerate(held):
        queue.offer(priority, number)
    queue.offer(new, 9)

    assert sorted(queue.take(9)) == left
    assert queue.dropped.total() == 1


@given(some.integers(1, 12), some.lists(some.sampled_from(QUEUED), max_size=80))
def test_sampling_takes_one_in_so_many_below_high(one_in, priorities):
    """All from HIGH on; of the others the first, and every `one_in`-th after it. The rest is counted, not lost."""
    queue = Backlog(1000)
    for number, priority in enumerate(priorities):
        queue.offer(priority, number, one_in=one_in)
    lower = [number for number, priority in enumerate(priorities) if priority < P.HIGH]
    kept = {*lower[::one_in], *(set(range(len(priorities))) - set(lower))}

    assert set(queue.take(1000)) == kept
    assert queue.thinned == len(priorities) - len(kept)
    assert not queue.dropped


def test_a_queue_without_room_is_refused():
    """It could only lose."""
    with pytest.raises(ValueError, match="at least 1"):
        Backlog(0)


@given(some.lists(some.floats(0, 5), max_size=80))
def test_a_token_bucket_never_gives_more_than_its_rate(pauses):
    """In any stretch of time: at most the burst and the rate times the stretch. A wait that it names is enough."""
    bucket, now, given_at = TokenBucket(2.0, 3), 0.0, []
    for pause in pauses:
        now += pause
        if wait := bucket.take(now):
            assert 0 < wait <= 0.5
            assert bucket.take(now + wait + 1e-6) == 0.0
            now += wait + 1e-6
        given_at.append(now)

    for first in range(len(given_at)):
        for last in range(first, len(given_at)):
            assert last - first + 1 <= 3 + 2.0 * (given_at[last] - given_at[first]) + 1e-3
