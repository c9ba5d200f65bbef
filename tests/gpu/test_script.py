"""The script for a machine with a GPU: wheels, rows, limits of time. Its parts are tried by `--device cpu`."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.gpu import __main__ as script
from tests.gpu import parts, wheels
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("name", "fitting"),
    [
        ("rich-15.0.0-py3-none-any.whl", [(3, 11), (3, 14)]),
        ("sortedcontainers-2.4.0-py2.py3-none-any.whl", [(3, 11), (3, 14)]),
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_x86_64.whl", [(3, 12)]),
        ("protobuf-7.36.2-cp310-abi3-manylinux2014_x86_64.whl", [(3, 11), (3, 12), (3, 14)]),
        ("some-1.0-cp313-abi3-manylinux2014_x86_64.whl", [(3, 13), (3, 14)]),
    ],
)
def test_wheels_are_chosen_by_the_interpreter(name, fitting):
    """Pure ones, ones for a version, and ones for a version and all later ones."""
    versions = [(3, 11), (3, 12), (3, 13), (3, 14)]
    found = [version for version in versions if wheels.fits(name, version)]
    assert set(fitting) <= set(found)
    assert len(found) == len(fitting) or "none" in name or "abi3" in name


def test_wheels_are_unpacked_without_an_installer(tmp_path):
    """They can be imported from there, before what is installed."""
    for tag in ("py3-none-any", "cp39-cp39-manylinux1_x86_64"):
        with zipfile.ZipFile(tmp_path / f"unpacked_here-1.0-{tag}.whl", "w") as wheel:
            wheel.writestr("unpacked_here.py", f"tag = {tag!r}")
    assert wheels.unpack(tmp_path, tmp_path / "to") == ["unpacked_here"]
    code = "import unpacked_here; print(unpacked_here.tag)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "to")}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert found.stdout == "py3-none-any\n"


def test_every_package_that_travels_is_pinned():
    """By constraints.txt; torch and NumPy are not among them."""
    found = wheels.pinned()
    assert len(found) == len(wheels.NAMES)
    assert not {"torch", "numpy"} & {one.split("==")[0] for one in found}


def test_every_part_has_a_limit_and_all_fit_into_eight_minutes():
    """The last ones get what is left; those before them have their whole time."""
    assert list(script.LIMITS) == list(parts.PARTS)
    *most, _, _ = script.LIMITS.values()
    assert sum(most) < 8 * 60 + 60


@pytest.mark.parametrize(
    ("code", "ok", "text"),
    [
        ('print(\'RESULT {"ok": true, "text": "1 GB", "seconds": 1}\')', True, "1 GB"),
        ('print(\'RESULT {"ok": false, "text": "other bits", "seconds": 1}\')', False, "other bits"),
        ("raise SystemExit('broken')", False, "ended with 1: broken"),
        ("import time; time.sleep(60)", False, "did not end within 1 s"),
    ],
    ids=["a row", "a failure", "an end", "a hang"],
)
def test_a_part_is_a_row_whatever_becomes_of_it(tmp_path, code, ok, text):
    """Nothing that it started outlives it."""
    starts = "import subprocess; child = subprocess.Popen(['sleep', '600']); print('child', child.pid, flush=True); "
    log, limit_s = tmp_path / "log", 1.0 if "sleep(60)" in code else 60.0
    row = script.run_part("a part", [sys.executable, "-c", starts + code], dict(os.environ), log, limit_s, tmp_path)
    assert (row.ok, row.text) == (ok, text)
    child = int(next(line for line in log.read_text().splitlines() if line.startswith("child")).split()[1])
    # It is killed with the part; the system takes a moment.
    wait_for(lambda: not is_running(child), "its end")


def is_running(pid: int) -> bool:
    """Return whether a process lives, and is not only waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_table_names_the_device_and_every_row():
    """A long text goes on below itself."""
    rows = [script.Row("short", True, "all is well", 3.0), script.Row("a long name", False, "word " * 40, 12.0)]
    text = script.table("NVIDIA of some kind", rows)
    assert text.startswith("NVIDIA of some kind\n")
    assert "short        ok          3 s  all is well" in text
    assert "a long name  FAILED     12 s  word" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    assert text.count("word") == 40


def script_with(*options):
    """Run the script from another folder than the checkout's, where a user's runs are."""
    environment = {**os.environ, "PYTHONPATH": str(wheels.ROOT)}
    command = [sys.executable, "-m", "tests.gpu", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_without_a_device_the_script_says_so():
    """And does nothing, and succeeds."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a device")
    found = script_with("--wheels", "/nonexistent")
    assert found.returncode == 0
    assert "sees no CUDA device here. Nothing was run." in found.stdout


@pytest.mark.torture
def test_every_part_runs_with_small_sizes(tmp_path):
    """On the CPU, in three minutes on a quiet machine."""
    found = script_with("--device", "cpu", "--logs", str(tmp_path))
    print(found.stdout)
    assert found.returncode == 0
    assert found.stdout.count("FAILED") == 0
