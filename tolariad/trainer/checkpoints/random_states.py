"""Random states of CUDA devices, on a machine with another number of devices than the one that they come from."""

from __future__ import annotations

from typing import Any

import torch


def fitted(states: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return random states with as many of CUDA devices as there are here. `device`: the run's.

    The run's device gets the state of the device that the run had. Every other one gets that of its own number; if
    there was no such device, its state stays. A run on the CPU leaves all as they are if their numbers differ.
    """
    held, here = states["cuda"], torch.cuda.device_count()
    if not held or device.type != "cuda":
        return states if len(held) == here else {**states, "cuda": []}
    found = [held[n] if n < len(held) else torch.cuda.get_rng_state(n) for n in range(here)]
    found[device.index or 0] = held[states.get("device", 0)]
    return {**states, "cuda": found}
