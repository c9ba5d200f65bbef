"""The figures of the device: those of this machine, and those that NVML gives; what is missing is left out."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import psutil
import pytest

from tests.fake_nvml import GIB, NVMLError, nvml
from tolariad.supervisor.hardware import HardwareProbe


@pytest.fixture
def read(monkeypatch):
    """A function that reads a device with this pynvml (None: there is none) and this CUDA_VISIBLE_DEVICES."""

    def reading(device, module, visible=None):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        return HardwareProbe(device, environ=environ).read()

    return reading


def test_a_processor_has_memory_and_load():
    """This machine's, in units of 1024^3 bytes and percent."""
    found = HardwareProbe("cpu").read()

    assert (found.device_type, found.device_id, found.compute_capability) == ("cpu", "cpu", 0)
    assert math.isclose(found.total_memory_gb, psutil.virtual_memory().total / GIB, rel_tol=1e-6)
    assert 0 < found.available_memory_gb <= found.total_memory_gb
    assert 0 <= found.utilization_percent <= 100


@pytest.mark.parametrize(("sensors", "expected"), [({}, None), ({"acpitz": [90], "coretemp": [41, 47]}, 47)])
def test_a_temperature_is_the_processors_hottest_or_absent(monkeypatch, sensors, expected):
    """0 degrees is a temperature; without a sensor the field is not set."""
    table = {name: [SimpleNamespace(current=one) for one in values] for name, values in sensors.items()}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: table)
    found = HardwareProbe("cpu").read()

    assert (found.temperature_celsius if found.HasField("temperature_celsius") else None) == expected


def test_a_gpu_has_all_figures(read):
    """Those that NVML gives; a temperature of 0 is there."""
    found = read("cuda:1", nvml())

    assert (found.device_type, found.device_id, found.compute_capability) == ("cuda", "cuda:1", 90)
    assert (found.total_memory_gb, found.available_memory_gb, found.utilization_percent) == (40.0, 20.0, 93.0)
    assert found.HasField("temperature_celsius")


@pytest.mark.parametrize(
    ("device", "visible", "memory"),
    [
        ("cuda", None, 80),
        ("cuda", "1", 40),
        ("cuda:1", "1,0", 80),
        ("cuda:1", "GPU-a, GPU-b", 40),
        ("cuda:1", "1", 0),
        ("cuda", "", 0),
    ],
)
def test_the_devices_are_numbered_as_torch_numbers_them(read, device, visible, memory):
    """CUDA_VISIBLE_DEVICES by number or name; a device that is not visible has no figures."""
    assert read(device, nvml(), visible).total_memory_gb == memory


@pytest.mark.parametrize("module", [None, nvml(nvmlInit=NVMLError)], ids=["no package", "no driver"])
def test_without_nvml_only_the_name_is_there(read, module):
    """A run goes on without the figures."""
    found = read("cuda:0", module)

    assert [(field.name, value) for field, value in found.ListFields()] == [
        ("device_type", "cuda"),
        ("device_id", "cuda:0"),
    ]


def test_a_figure_that_a_device_does_not_have_is_left_out(read):
    """The others are there: integrated devices have no temperature, for example."""
    missing = ("nvmlDeviceGetTemperature", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetCudaComputeCapability")
    found = read("cuda", nvml(**dict.fromkeys(missing, NVMLError)))

    assert (found.total_memory_gb, found.utilization_percent, found.compute_capability) == (80.0, 0.0, 0)
    assert not found.HasField("temperature_celsius")
