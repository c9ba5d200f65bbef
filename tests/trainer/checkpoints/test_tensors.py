"""Tensors as files: exact in every dtype, stored once, equal bytes for equal values."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load

from tolariad.trainer.checkpoints.buffers import HostBuffer
from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
from tolariad.trainer.checkpoints.tensors import DTYPES, read_tensors, without_duplicates


def written(tensors):
    """Return the file of these tensors; live tensors and a copy give the same bytes."""
    live = Snapshot(
        position=Position(0, 1, 0), tensors={"t": tensors}, aliases={}, transient=(), state=b"", state_group="s"
    )
    of_live, of_copy = (
        b"".join(map(bytes, next(iter(snapshot.files())).chunks)) for snapshot in (live, live.copied_into(HostBuffer()))
    )
    assert of_live == of_copy
    return of_live


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
def test_every_dtype_comes_back_to_the_bit(dtype):
    """The library's own reader finds the same dtype, shape and bits."""
    raw = torch.randint(0, 2, (4, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    tensor = raw.bool() if dtype is torch.bool else raw.view(dtype)
    read = load(written({"t": tensor}))["t"]
    assert read.dtype == dtype
    assert read.shape == tensor.shape
    assert torch.equal(read.view(torch.uint8), tensor.contiguous().view(torch.uint8))


def test_the_layout_in_memory_does_not_matter():
    """A transposed tensor gives the file of its contiguous copy; the order of names does not matter."""
    tensor = torch.arange(6.0).reshape(2, 3)
    other = torch.ones(1, dtype=torch.float64)
    transposed = tensor.t().contiguous().t()
    assert not transposed.is_contiguous()
    assert written({"a": tensor, "b": other}) == written({"b": other, "a": transposed})


def test_a_tied_tensor_is_stored_once():
    """Two names of one tensor give one entry and an alias; a view of a part is stored separately."""
    weight = torch.ones(3, 2)
    unique, aliases = without_duplicates({"a": weight, "b": weight[:2], "c": weight, "d": torch.zeros(0)})
    assert list(unique) == ["a", "b", "d"]
    assert aliases == {"c": "a"}


def test_a_file_that_is_none_is_refused():
    """Garbage gives a sentence."""
    with pytest.raises(ValueError, match="not a safetensors file"):
        read_tensors(memoryview(b"\xff" * 32))


def test_a_conjugate_view_is_not_taken_for_the_tensor_it_looks_at():
    """It has the same memory but other values."""
    whole = torch.tensor([1 + 2j])
    unique, aliases = without_duplicates({"whole": whole, "conjugate": whole.conj()})
    assert set(unique) == {"whole", "conjugate"}
    assert aliases == {}
