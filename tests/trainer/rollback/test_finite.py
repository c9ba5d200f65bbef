"""The check of a snapshot for values that are not finite."""

from __future__ import annotations

import math

import pytest
import torch

from tolariad.trainer.rollback.snapshots import _is_finite

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_agrees_on_every_place_and_kind(dtype, seed):
    """One value anywhere is found, also two that cancel in a sum, and in non-contiguous memory."""
    torch.manual_seed(seed)
    for size in (1, 7, 64, 1_000, 70_000):
        whole = torch.randn(size, 2).to(dtype)
        for tensor in (whole, whole[:, 0], whole.t()):
            assert _is_finite(tensor)
        for planted in ((math.nan,), (math.inf,), (-math.inf,), (math.inf, -math.inf), (math.nan, math.inf)):
            sick = whole.clone()
            places = torch.randint(0, size, (len(planted),))
            sick[places, 1] = torch.tensor(planted, dtype=dtype)
            assert not _is_finite(sick), (size, planted, places)
            assert _is_finite(sick[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_beyond_all_is_no_value_beyond_all(dtype):
    """Very large finite weights are accepted."""
    largest = torch.full((1_000,), torch.finfo(dtype).max, dtype=dtype)
    assert not largest.sum().isfinite()
    assert _is_finite(largest)
    assert _is_finite(-largest)
