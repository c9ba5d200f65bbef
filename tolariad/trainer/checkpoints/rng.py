"""Save and restore the process-wide generators: Python, NumPy, torch CPU, every CUDA device.

Promises: reading the states draws nothing.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def rng_states() -> dict[str, Any]:
    """Return the states of all process-wide generators, as a tree that the codec can write."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the process-wide generator is the point
        "torch": torch.get_rng_state(),
        "cuda": list(cuda),
    }


def set_rng_states(states: dict[str, Any]) -> None:
    """Set all process-wide generators. Raises ValueError if the machine has another number of CUDA devices."""
    cuda = states["cuda"]
    if cuda and len(cuda) != torch.cuda.device_count():
        raise ValueError(
            f"it holds the random states of {len(cuda)} CUDA devices, here are {torch.cuda.device_count()}"
        )
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if cuda:
        torch.cuda.set_rng_state_all(cuda)
