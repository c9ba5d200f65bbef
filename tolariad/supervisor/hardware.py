"""Figures of the device that a run trains on, for the state packet: memory, load, temperature.

Figures only: nothing is decided by them here. Promises: `read` never raises and never waits for a device. A figure that
cannot be read is 0; a temperature that cannot be read is absent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

import psutil

from tolariad.leyline import HardwareContext
from tolariad.supervisor.arena import free_memory

_log = logging.getLogger(__name__)
_GIB: Final = 1024.0**3
# The sensors of processors, by the names of their Linux drivers.
_PROCESSOR_SENSORS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


class HardwareProbe:
    """Reads one device. Used from one thread: the load is that since this thread's last `read`.

    * `device`: torch's name of the device, `cpu`, `cuda` or `cuda:N`.
    * `environ`: the trainer's environment. Its CUDA_VISIBLE_DEVICES numbers the devices. If a machine's devices differ,
      set CUDA_DEVICE_ORDER=PCI_BUS_ID there: NVML counts in this order.

    NVML needs the extra `gpu`.
    """

    def __init__(self, device: str, *, environ: Mapping[str, str] = os.environ) -> None:
        self.device = device
        self._type, _, number = device.partition(":")
        self._nvml: Any = None
        self._handle: Any = None
        if self._type == "cuda":
            self._open(int(number or 0), environ.get("CUDA_VISIBLE_DEVICES"))
        else:
            # The first call returns 0: it has nothing to compare with.
            psutil.cpu_percent()

    def _open(self, number: int, visible: str | None) -> None:
        """Find the device's handle. `visible`: indices of NVML or UUIDs, in the order in which torch counts."""
        names = {} if visible is None else dict(enumerate(one.strip() for one in visible.split(",")))
        name = str(number) if visible is None else names.get(number, "")
        try:
            import pynvml
        except ImportError as error:
            self._leave_out(error)
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            by = pynvml.nvmlDeviceGetHandleByIndex if name.isdecimal() else pynvml.nvmlDeviceGetHandleByUUID
            self._handle = by(int(name) if name.isdecimal() else name)
        except pynvml.NVMLError as error:
            self._leave_out(error)

    def _leave_out(self, error: Exception) -> None:
        _log.info("figures of %s are left out: NVML cannot be read (%s)", self.device, error)

    def read(self) -> HardwareContext:
        """Return the present figures."""
        return self._cuda() if self._type == "cuda" else self._cpu()

    def _cpu(self) -> HardwareContext:
        sensors = psutil.sensors_temperatures()
        found = [one.current for name in _PROCESSOR_SENSORS for one in sensors.get(name, ())]
        return HardwareContext(
            device_type=self._type,
            device_id=self.device,
            total_memory_gb=psutil.virtual_memory().total / _GIB,
            available_memory_gb=free_memory() / _GIB,
            temperature_celsius=max(found, default=None),
            utilization_percent=psutil.cpu_percent(),
        )

    def _cuda(self) -> HardwareContext:
        if self._handle is None:
            return HardwareContext(device_type=self._type, device_id=self.device)
        nvml, ask = self._nvml, self._ask
        memory, load = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetUtilizationRates")
        major, minor = ask("nvmlDeviceGetCudaComputeCapability") or (0, 0)
        return HardwareContext(
            device_type=self._type,
            device_id=self.device,
            total_memory_gb=memory.total / _GIB if memory else 0.0,
            available_memory_gb=memory.free / _GIB if memory else 0.0,
            temperature_celsius=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            utilization_percent=load.gpu if load else 0.0,
            compute_capability=10 * major + minor,
        )

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Return the answer, or None: not every device has every figure."""
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None
