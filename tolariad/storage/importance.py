"""Read the newest scores in an importance file, which `tolariad.trainer.pruning.history` writes and describes."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from typing import Final

from tolariad import run_files
from tolariad.core.calc.pruning.known import KnownImportance
from tolariad.storage.tensor_file import labels_of, parse

_BYTES_MAX: Final = 256 * 1024 * 1024
_KIND: Final = "F64"


def read_importance(run: Path, file: str) -> KnownImportance | None:
    """Return what the file knows of its newest analysis; None if it cannot be read, or `file` is empty."""
    if not file:
        return None
    try:
        content = run_files.read_file(run, file, _BYTES_MAX)
        labels, scores = labels_of(content), dict[str, tuple[float, ...]]()
        newest = f"{int(labels['cycle']):06d}/"
        for name, tensor in parse(content).items():
            if name.startswith(newest) and tensor.entry.dtype == _KIND:
                scores[name.removeprefix(newest)] = _numbers(tensor.data)
        return KnownImportance(
            epoch=int(labels["epoch"]), estimator=labels["estimator"], samples=int(labels["samples"]), scores=scores
        )
    except (OSError, ValueError, KeyError):
        return None


def _numbers(data: memoryview) -> tuple[float, ...]:
    found = array("d", data.tobytes())
    if sys.byteorder == "big":
        found.byteswap()
    return tuple(found)
