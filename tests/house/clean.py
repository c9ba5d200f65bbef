"""An environment with one wheel and with nothing but the packages that it asks for: no checkout, no network."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# What an interpreter's site-packages may have beside packages.
_NOT_OF_A_PACKAGE = ("..", "__pycache__")


def required(name: str, extras: set[str]) -> set[str]:
    """Return the distributions that one needs with these extras, and what these need, by name."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        for text in metadata.requires(name) or []:
            needed = Requirement(text)
            marks = ({"extra": one} for one in ("", *wanted))
            if needed.marker is None or any(needed.marker.evaluate(one) for one in marks):
                key = canonicalize_name(needed.name)
                if key not in found:
                    found.add(key)
                    waiting.append((key, frozenset(needed.extras)))
    return found


def environment(folder: Path, wheel: Path, *, extras: set[str]) -> Path:
    """Make the environment, with its packages as links to those of this interpreter. Return its `bin`."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    for name in sorted(required("tolariad", extras) - {"tolariad"}):
        installed = metadata.distribution(name)
        for top in {Path(str(file)).parts[0] for file in installed.files or ()} - set(_NOT_OF_A_PACKAGE):
            if not (site / top).exists():
                (site / top).symlink_to(installed.locate_file(top))
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--disable-pip-version-check", str(wheel)]
    subprocess.run(command, check=True, timeout=300)
    return folder / "bin"
