"""Compare captured state with stored state, bit for bit.

Promises: NaN equals NaN, and +0 differs from -0. Each difference has the path of the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tolariad.trainer.checkpoints.tree import Stored

if TYPE_CHECKING:
    from collections.abc import Iterator


def differing_tensors(prefix: str, live: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> Iterator[str]:
    """Yield the names, after `prefix`, of the tensors that differ or are on one side only."""
    for name in sorted(live.keys() | held.keys()):
        if name not in live or name not in held or not _same_bits(live[name], held[name]):
            yield f"{prefix}{name}"


def differing_values(path: str, live: Any, stored: Any) -> Iterator[str]:
    """Yield the paths of the leaves that differ. Only stored keys count: a newer torch may add options."""
    match stored:
        case Stored():
            if not isinstance(live, Stored) or not _same_bits(live.tensor, stored.tensor):
                yield path
        case dict():
            for key, value in stored.items():
                if not isinstance(live, dict) or key not in live:
                    yield f"{path}.{key}"
                else:
                    yield from differing_values(f"{path}.{key}", live[key], value)
        case list() | tuple():
            if not isinstance(live, type(stored)) or len(live) != len(stored):
                yield path
            else:
                for index, (one, other) in enumerate(zip(live, stored, strict=True)):
                    yield from differing_values(f"{path}.{index}", one, other)
        case np.ndarray():
            if not isinstance(live, np.ndarray) or live.dtype != stored.dtype or live.tobytes() != stored.tobytes():
                yield path
        case float():
            # Compare as hexadecimal text: it distinguishes 0.0 from -0.0, and NaN equals NaN.
            if not isinstance(live, float) or live.hex() != stored.hex():
                yield path
        case _:
            if live != stored:
                yield path


def _same_bits(live: torch.Tensor, stored: torch.Tensor) -> bool:
    if (live.shape, live.dtype) != (stored.shape, stored.dtype):
        return False
    here, there = live.cpu().contiguous(), stored.cpu().contiguous()
    return here.numel() == 0 or torch.equal(here.reshape(-1).view(torch.uint8), there.reshape(-1).view(torch.uint8))
