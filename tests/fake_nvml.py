"""A made-up pynvml, for figures of a GPU without one."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

GIB = 1024**3


class NVMLError(Exception):
    """The error of NVML."""


# Total memory by NVML's index and by UUID: index 0 is "GPU-a", index 1 "GPU-b".
BY_INDEX, BY_UUID = (80, 40), {"GPU-a": 80, "GPU-b": 40}


def nvml(**answers):
    """A pynvml with two devices, whose handles are their memory. An answer that is NVMLError is raised."""
    made = ModuleType("pynvml")
    made.NVMLError, made.NVML_TEMPERATURE_GPU = NVMLError, 0

    def answering(value):
        def function(*_):
            if value is NVMLError:
                raise NVMLError
            return value

        return function

    def by_uuid(name):
        if name not in BY_UUID:
            raise NVMLError
        return BY_UUID[name]

    made.nvmlDeviceGetHandleByIndex, made.nvmlDeviceGetHandleByUUID = BY_INDEX.__getitem__, by_uuid
    made.nvmlDeviceGetMemoryInfo = lambda gib: SimpleNamespace(total=gib * GIB, free=(gib - 20) * GIB)
    usual = {
        "nvmlInit": None,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=93),
        "nvmlDeviceGetTemperature": 0,
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
    }
    for name, value in (usual | answers).items():
        setattr(made, name, answering(value))
    return made
