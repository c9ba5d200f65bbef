"""`tolaria version`: what a report of a problem needs to say about the machine and what is installed on it.

Promises: nothing is imported to learn its version, torch least of all. The answer names no path, host or user, so it
can be pasted into a public report.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

import tolariad
from journal.filesystem import UNTESTED, file_system_magic
from journal.format import VERSION as JOURNAL_FORMAT
from tolariad.cli import naming, output, runs
from tolariad.cli.errors import Exit
from tolariad.core.calc.text.phrases import counted, size
from tolariad.core.state.run_state import FOLD_VERSION
from tolariad.storage.manifest import FORMAT as CHECKPOINT_FORMAT

_NAME: Final = "tolariad"
_REQUIREMENT: Final = re.compile(r"^([\w.-]+)[^;]*(?:;.*extra == ['\"]([\w-]+)['\"])?")
_TORCH_FIELD: Final = r"^{}\b[^=\n]*= *'([^']+)'"
_MOUNTS: Final = Path("/proc/self/mountinfo")
_NVIDIA: Final = Path("/proc/driver/nvidia/version")
_MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - its kind of file system is shown, nothing is written there
# Extras that no user's report is about; JSON has them.
_OF_DEVELOPMENT: Final = ("bench", "dev", "oracle")
# Each exists if its engine made the container.
_CONTAINER_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))


class FileSystem(msgspec.Struct, frozen=True, kw_only=True):
    """The file system of a folder.

    `place` says what the folder holds. `refused`: a run refuses to write its journal there unless it is told to.
    """

    place: str
    kind: str
    refused: bool


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the command. The version of a package that is not installed is None; memory is in bytes.

    `extras`: for each extra of the package, the packages that it installs. `nvidia_driver`: the version of the kernel's
    module.
    """

    tolariad: str
    installed_as: str
    journal_format: int
    fold_version: int
    checkpoint_format: str
    python: str
    torch: str | None
    torch_cuda: str | None
    torch_rocm: str | None
    nvidia_driver: str | None
    system: str
    kernel: str
    libc: str
    machine: str
    cores: int
    memory: int
    in_container: bool
    file_systems: tuple[FileSystem, ...]
    packages: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]


@click.command()
@naming.argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.options
def version(*, as_json: bool, **place: Any) -> int:
    """Show the versions of all that matters, to be pasted into a report.

    With RUN, the file system of that run's journal is shown too.
    """
    target = runs.named(**place)
    found = found_here(None if target is None else runs.journal_of(target))
    if as_json:
        output.put_json(msgspec.to_builtins(found))
        return Exit.DONE
    rows = list(_rows(found))
    indent = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        output.put(f"{name.ljust(indent)}{text}", indent=indent)
    return Exit.DONE


def found_here(journal: Path | None = None) -> Versions:
    """Return what is installed here, and the kinds of file systems. `journal` is the journal folder of a run."""
    packages, extras = _requirements()
    return Versions(
        tolariad=tolariad.__version__,
        installed_as=_installed_as(),
        journal_format=JOURNAL_FORMAT,
        fold_version=FOLD_VERSION,
        checkpoint_format=CHECKPOINT_FORMAT,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        torch=_version_of("torch"),
        torch_cuda=_torch_field("cuda"),
        torch_rocm=_torch_field("hip"),
        nvidia_driver=_nvidia_driver(),
        system=_system(),
        kernel=f"{platform.system()} {platform.release()}",
        libc=" ".join(platform.libc_ver()).strip(),
        machine=platform.machine(),
        cores=os.cpu_count() or 0,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        in_container=any(mark.exists() for mark in _CONTAINER_MARKS),
        file_systems=tuple(_file_systems(journal)),
        packages=packages,
        extras=extras,
    )


def _rows(found: Versions) -> Iterator[tuple[str, str]]:
    yield "tolariad", f"{found.tolariad} ({found.installed_as})"
    yield "formats", f"journal {found.journal_format}, fold {found.fold_version}, checkpoint {found.checkpoint_format}"
    yield "python", found.python
    accelerators = {"CUDA": found.torch_cuda, "ROCm": found.torch_rocm, "NVIDIA driver": found.nvidia_driver}
    yield (
        "torch",
        "; ".join(
            [found.torch or "not installed", *(f"{name} {number or 'none'}" for name, number in accelerators.items())]
        ),
    )
    yield "system", ", ".join(filter(None, (found.system, found.kernel, found.machine, found.libc)))
    where = ", in a container" if found.in_container else ""
    yield "machine", f"{counted(found.cores, 'core')}, {size(found.memory)} of memory{where}"
    yield (
        "file systems",
        ", ".join(
            f"{one.place}: {one.kind}{' (refused for a journal)' if one.refused else ''}" for one in found.file_systems
        ),
    )
    yield "packages", _listed(found.packages)
    users = {name: brought for name, brought in found.extras.items() if name not in _OF_DEVELOPMENT}
    there = {name: brought for name, brought in users.items() if None not in brought.values()}
    yield "extras", "; ".join(f"{name}: {_listed(brought)}" for name, brought in there.items()) or "none"
    yield "without", ", ".join(name for name in users if name not in there) or "none"


def _listed(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {number or 'not installed'}" for name, number in packages.items())


# -- what is installed -------------------------------------------------------------------------------------------------


def _installed_as() -> str:
    """Return `wheel`, `editable`, or `source` for a folder that is on the path without an installation."""
    from importlib import metadata  # --help imports this file

    try:
        origin = metadata.distribution(_NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return "source"
    return "editable" if origin and json.loads(origin).get("dir_info", {}).get("editable") else "wheel"


def _requirements() -> tuple[dict[str, str | None], dict[str, dict[str, str | None]]]:
    """Return the required packages but torch, and those of each extra, by name with their versions."""
    from importlib import metadata  # --help imports this file

    packages: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {}
    try:
        required = metadata.requires(_NAME) or []
    except metadata.PackageNotFoundError:
        required = []
    for text in required:
        found = _REQUIREMENT.match(text)
        # An extra that names other extras of this package brings what they bring.
        if found is not None and found[1] not in (_NAME, "torch"):
            target = packages if found[2] is None else extras.setdefault(found[2], {})
            target[found[1]] = _version_of(found[1])
    return packages, extras


def _version_of(name: str) -> str | None:
    from importlib import metadata  # --help imports this file

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch_field(name: str) -> str | None:
    """Return a field of torch's generated version.py; None if it is not set there, or there is no such file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(_TORCH_FIELD.format(name), text, re.MULTILINE)
    return found[1] if found else None


# -- the machine -------------------------------------------------------------------------------------------------------


def _nvidia_driver() -> str | None:
    try:
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", _NVIDIA.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _file_systems(journal: Path | None) -> Iterator[FileSystem]:
    """Yield those of the working folder, in which runs are made by default, of temporary files and shared memory."""
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - as above
    places = {"working folder": Path(), "temporary files": temporary}
    places |= {"shared memory": _MEMORY_FOLDER} | ({} if journal is None else {"run": journal})
    for place, folder in places.items():
        if folder.is_dir():
            yield FileSystem(place=place, kind=_kind_of(folder), refused=_is_refused(folder))


def _kind_of(folder: Path) -> str:
    """Return the kind of a folder's file system: that of the last mount on the nearest folder above it.

    Not by the number of the device: on btrfs a file has another one than its mount.
    """
    try:
        lines = _MOUNTS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    above = [folder.resolve(), *folder.resolve().parents]
    nearest, kind = len(above), "unknown"
    for line in lines:
        mount = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4]))
        if mount in above[: nearest + 1]:
            nearest, kind = above.index(mount), line.partition(" - ")[2].split(" ")[0]
    return kind


def _is_refused(folder: Path) -> bool:
    try:
        return file_system_magic(folder) in UNTESTED
    except (OSError, AttributeError):
        # Systems other than Linux have another statfs, or none.
        return False
