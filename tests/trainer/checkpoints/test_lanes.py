"""Copies and digests by several threads are equal to torch's copy and to XXH3 of all bytes, for any tensors."""

from __future__ import annotations

import os
import threading

import pytest
import torch
import xxhash

from tolariad.trainer.checkpoints import lanes
from tolariad.trainer.checkpoints.tensors import raw_bytes

MANY = lanes.PIECE_BYTES // 4


@pytest.fixture(params=[1, 2, 16])
def cores(request, monkeypatch):
    """Return the number of cores that this process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(request.param)))
    return request.param


def pairs_of(seed):
    """Return targets of every kind, and sources with their values."""
    draw = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(shape, generator=draw)

    repeated = torch.zeros(5, 1)
    targets = [
        torch.zeros(MANY + 1),
        torch.zeros(3 * MANY - 5),
        torch.zeros(MANY, dtype=torch.bfloat16),
        torch.zeros(700, 300).t(),
        torch.zeros(2, 3, 128, 128).contiguous(memory_format=torch.channels_last),
        torch.zeros(40_000, dtype=torch.int64),
        torch.zeros(()),
        torch.zeros(0, 7),
        torch.zeros(9, dtype=torch.bool),
        repeated.expand(5, 4),
        *(torch.zeros(100) for _ in range(30)),
    ]
    pairs = []
    for target in targets:
        source = drawn(5, 1).expand(5, 4) if target.shape == (5, 4) else (drawn(*target.shape) * 100).to(target.dtype)
        pairs.append((target, source))
    return pairs


def expected_digest(source):
    return xxhash.xxh3_64_intdigest(bytes(raw_bytes(source.clone(memory_format=torch.contiguous_format))))


def same_bits(one, other):
    return bytes(raw_bytes(one)) == bytes(raw_bytes(other))


def test_every_tensor_is_copied_to_the_bit_and_its_digest_noted(cores, seed, monkeypatch):
    """Large and small tensors in any memory layout; the digests are those of the targets, computed once."""
    pairs = pairs_of(seed)
    digests = lanes.Digests()
    lanes.copy(pairs, digests)
    monkeypatch.setattr(lanes, "digest_of", lambda _: pytest.fail("a digest was not noted"))

    for target, source in pairs:
        assert same_bits(target, source), target.shape
        assert digests.of(target) == expected_digest(source), target.shape


def test_a_copy_without_digests_is_the_same(cores, seed):
    """The time that training waits."""
    pairs = pairs_of(seed)
    lanes.copy(pairs)

    assert all(same_bits(target, source) for target, source in pairs)


def test_a_digest_is_of_the_target_not_of_its_source(seed):
    """A target that loses written data is detected: here by a second copy to the same place."""
    first, second = (torch.randn(MANY, generator=torch.Generator().manual_seed(seed + n)) for n in (0, 1))
    target, digests = torch.zeros(MANY), lanes.Digests()
    lanes.copy([(target, first)], digests)
    before = digests.of(target)
    target.copy_(second)

    assert before == expected_digest(first)
    assert lanes.take_digests([target]).of(target) == expected_digest(second) != before


def test_tensors_that_share_a_place_in_another_order_have_digests_of_their_own(seed):
    """A weight and its transpose have the same bytes in memory, but other values row by row."""
    weight = torch.randn(100, 100, generator=torch.Generator().manual_seed(seed))
    digests = lanes.take_digests([weight, weight.t()])

    assert digests.of(weight) == expected_digest(weight)
    assert digests.of(weight.t()) == expected_digest(weight.t()) != digests.of(weight)


def test_a_graph_that_holds_what_was_copied_into_says_so():
    """As after torch's own copy: the gradients would belong to old values."""
    weight = torch.ones(MANY, requires_grad=True)
    loss = (weight * weight).sum()
    lanes.copy([(weight.detach(), torch.zeros(MANY))])

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_error_in_any_thread_is_raised_and_ends_them_all(cores):
    """Among many valid pairs, one target cannot hold its source."""

    class Refusing(lanes.Digests):
        def note(self, tensor, digest):
            if tensor is bad:
                raise OSError("no room for this one")
            super().note(tensor, digest)

    bad = torch.zeros(MANY)
    pairs = [(torch.zeros(MANY), torch.ones(MANY)) for _ in range(8)]
    pairs.insert(4, (bad, torch.ones(MANY)))

    with pytest.raises(OSError, match="no room"):
        lanes.copy(pairs, Refusing())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("copy-")]
