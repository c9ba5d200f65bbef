"""The packages that a bare machine with torch lacks: fetched here, unpacked there. The standard library only.

`python -m tests.gpu.wheels FOLDER` fetches the wheels that constraints.txt pins, for every version of Python that an
image with CUDA may have. They are unpacked without pip, which a bare machine need not have. NumPy is not among them:
every image with torch has it, and with it they would be too large to travel.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BYTES_MAX = 64 << 20
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# What a run imports beside torch and NumPy, without uvloop, which it does not need; and what its tests import.
NAMES = (
    *("aiofiles", "blake3", "click", "google-crc32c", "msgspec", "plotext", "protobuf", "psutil", "PyYAML", "rich"),
    *("structlog", "xxhash", "zstandard"),
    *("markdown-it-py", "mdurl", "Pygments", "typing_extensions"),
    *("pytest", "pytest-asyncio", "hypothesis", "iniconfig", "packaging", "pluggy", "sortedcontainers"),
)
# pip matches each of them exactly.
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")


def pinned() -> list[str]:
    """Return what is fetched, as `name==version`."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    versions = {_plain(line.partition("==")[0]): line for line in lines if "==" in line}
    return [versions[_plain(name)] for name in NAMES]


def fetch(folder: Path) -> int:
    """Fetch all wheels into the folder with pip. Return their bytes. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [part for one in _PLATFORMS for part in ("--platform", f"{one}_x86_64")]
    for python in PYTHONS:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--implementation", "cp", "--python-version", python, *platforms, "--dest", str(folder)]
        subprocess.run([*command, *pinned()], check=True)
    return sum(one.stat().st_size for one in folder.glob("*.whl"))


def unpack(folder: Path, target: Path) -> list[str]:
    """Unpack the wheels that fit this interpreter into `target`. Return their names."""
    chosen = [wheel for wheel in sorted(folder.glob("*.whl")) if fits(wheel.name, sys.version_info[:2])]
    for wheel in chosen:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return [wheel.name.split("-")[0] for wheel in chosen]


def fits(name: str, python: tuple[int, int]) -> bool:
    """Return whether a wheel of this file name is for this version of CPython."""
    kind, abi = name.removesuffix(".whl").split("-")[-3:-1]
    if abi == "abi3":
        found = re.fullmatch(r"cp3(\d+)", kind)
        return found is not None and python >= (3, int(found[1]))
    return abi == "none" or abi == f"cp{python[0]}{python[1]}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(folder: str) -> None:
    """Fetch, and say how much it is. Ends with 1 if it is too much to travel."""
    size = fetch(Path(folder))
    print(f"{len(list(Path(folder).glob('*.whl')))} wheels for Python {', '.join(PYTHONS)}: {size / 2**20:.1f} MiB")
    if size > BYTES_MAX:
        raise SystemExit(f"That is more than {BYTES_MAX >> 20} MiB.")


if __name__ == "__main__":
    main(sys.argv[1])
