"""The number of samples in a batch, in any containers."""

from __future__ import annotations

from typing import Any

import torch


def samples_of(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor, or of its first list; 1 without one."""
    return known_samples(batch) or 1


def known_samples(batch: Any) -> int | None:
    """Return the number of samples in a batch; None if its containers do not tell."""
    return _length(batch)


def _length(batch: Any) -> int | None:
    """Return the first dimension of the first tensor; without tensors, the length of the first list of other things."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else None
    if not _is_container(batch):
        return None
    values = list(batch if isinstance(batch, (tuple, list)) else batch.values())
    found = next((length for value in values if (length := _length(value)) is not None), None)
    if found is None and isinstance(batch, list) and values and not any(map(_is_container, values)):
        return len(values)
    return found


def _is_container(value: Any) -> bool:
    return isinstance(value, (tuple, list)) or callable(getattr(value, "values", None))
