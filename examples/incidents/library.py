"""Two versions of a small library, as `pip install --target` lays them out."""

from __future__ import annotations

from pathlib import Path

NAME = "incident_losses"
# The default of label smoothing is another one in the second version: nobody told the users.
VERSIONS = {"1.0": 0.0, "2.0": 0.05}


def installed(folder: Path, version: str) -> Path:
    """Install a version, and return the folder that PYTHONPATH must name."""
    target = folder / "libraries" / version
    package, about = target / NAME, target / f"{NAME}-{version}.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").write_text(f"SMOOTHING = {VERSIONS[version]}\n", encoding="utf-8")
    metadata = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
    (about / "METADATA").write_text(metadata, encoding="utf-8")
    return target
