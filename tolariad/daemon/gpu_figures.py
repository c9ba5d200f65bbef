"""Figures of the GPU on which a run trains, for its metrics.

Promises: a driver that hangs holds up one page, not those after it: while a read is under way, others have no figures.
Nothing is loaded for a run on a processor.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from tolariad.supervisor.hardware import HardwareProbe

_GIB: Final = 1024**3


class GpuFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one device. Memory in bytes; `load`: 0 to 1; `celsius` None: there is no sensor."""

    device: str
    used: float
    total: float
    load: float
    celsius: float | None


class GpuReader:
    """Reads the device that the trainer has reported. Any thread may ask."""

    def __init__(self) -> None:
        self._probe: HardwareProbe | None = None
        self._reading = threading.Lock()

    def read(self, device: str) -> GpuFigures | None:
        """Return the figures of `cuda` or `cuda:N`; None for other devices, and if they cannot be read now."""
        if not device.startswith("cuda") or not self._reading.acquire(blocking=False):
            return None
        try:
            # Loaded here: the figures are messages of protobuf, which most recorders do without.
            from tolariad.supervisor.hardware import HardwareProbe

            if self._probe is None or self._probe.device != device:
                self._probe = HardwareProbe(device)
            found = self._probe.read()
        finally:
            self._reading.release()
        if not found.total_memory_gb:
            return None
        return GpuFigures(
            device=device,
            used=(found.total_memory_gb - found.available_memory_gb) * _GIB,
            total=found.total_memory_gb * _GIB,
            load=found.utilization_percent / 100,
            celsius=found.temperature_celsius if found.HasField("temperature_celsius") else None,
        )
