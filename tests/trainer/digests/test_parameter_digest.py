"""Every bit and every place counts, on the CPU and on a device, and the strides of a tensor do not."""

from __future__ import annotations

import os
import random

import pytest
import torch

from tests.simulated_gpu import CUDA, SimulatedGpu
from tolariad.core.messages import DigestMethod
from tolariad.trainer.step import parameter_digest
from tolariad.trainer.step.parameter_digest import digesting, mixed

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


def of_host(tensor):
    """Return the digest of one tensor on the CPU."""
    return digesting({"one": tensor}).read().tensors[0]


def of_device(tensor):
    """Return the digest that a device computes."""
    return int(mixed(tensor))


@pytest.fixture
def rng():
    """A generator whose seed is printed; TOLARIA_SEED gives one."""
    seed = int(os.environ.get("TOLARIA_SEED", random.randrange(1 << 30)))
    print(f"TOLARIA_SEED={seed}")
    torch.manual_seed(seed)
    return random.Random(seed)


@pytest.mark.parametrize("digest", [of_host, of_device])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_flipped_bit_changes_the_digest(rng, digest, dtype):
    """And the tensor with its bit flipped back has the old one."""
    tensor = torch.randn(7, 11).to(dtype)
    before, raw = digest(tensor), tensor.view(-1).view(torch.uint8)
    for _ in range(16):
        place, bit = rng.randrange(raw.numel()), 1 << (0 if dtype is torch.bool else rng.randrange(8))
        raw[place] ^= bit
        assert digest(tensor) != before
        raw[place] ^= bit
    assert digest(tensor) == before


@pytest.mark.parametrize("digest", [of_host, of_device])
def test_exchanged_values_and_a_bit_flipped_twice_are_seen(rng, digest):
    """A plain sum misses the one, an exclusive or the other."""
    tensor = torch.randn(1000)
    before = digest(tensor)
    a, b = rng.sample(range(1000), 2)
    exchanged = tensor.clone()
    exchanged[[a, b]] = exchanged[[b, a]]
    assert digest(exchanged) != before
    twice = tensor.clone()
    twice.view(torch.int32)[[a, b]] ^= 1 << 20
    assert digest(twice) != before


@pytest.mark.parametrize("digest", [of_host, of_device])
def test_strides_do_not_count(digest):
    """Neither does a conjugation that is made when the tensor is read."""
    tensor = torch.randn(6, 8)
    assert digest(tensor.t().contiguous().t()) == digest(tensor)
    numbers = torch.randn(5, dtype=torch.complex64)
    assert digest(numbers.conj()) == digest(numbers.conj().resolve_conj())
    assert digest(torch.empty(0)) == digest(torch.empty(0, 3))


def test_pieces_of_a_large_tensor_count_by_their_places(monkeypatch):
    """The digest is the same in whatever pieces it is computed."""
    tensor = torch.randn(1000)
    whole = of_device(tensor)
    monkeypatch.setattr(parameter_digest, "_PIECE", 64)
    assert of_device(tensor) == whole


def test_a_device_is_waited_for_once(monkeypatch):
    """Some on the host, some on the device: nothing waits before the digests are read, and that is one transfer."""
    with SimulatedGpu(monkeypatch) as gpu:
        tensors = {str(number): torch.randn(4, 4).to(CUDA) for number in range(5)} | {"step": torch.tensor(3.0)}
        gpu.waits.clear()
        gpu.events = gpu.transfers = 0
        found = digesting(tensors)
        assert (dict(gpu.waits), gpu.transfers, gpu.events) == ({}, 1, 0)
        digests = found.read()
        assert (gpu.transfers, gpu.events) == (1, 1)
    assert (digests.names, digests.method) == (tuple(tensors), DigestMethod.MIXED)
    assert len(set(digests.tensors)) == len(tensors)
