"""A run's folder whose path is relative, in a program that changes its working folder, as under Hydra.

Promise: a program that begins a run anew at each start, because each start has another folder, is told so.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)
_ELSEWHERE: Final = (
    "The run begins in %s. Its run_dir %r is relative, and the program has changed its working folder since it "
    "imported tolariad. A start that changes to another folder does not find this run, and begins anew. Give an "
    "absolute run_dir that is the same at each start."
)


def here() -> str:
    """Return the working folder; "" if it was removed."""
    with contextlib.suppress(OSError):
        return os.getcwd()  # noqa: PTH109 - a Path of a removed folder raises as well
    return ""


_AT_IMPORT: Final = here()


def warn_of_another(run_dir: Path, before: str = _AT_IMPORT) -> None:
    """Warn if a new run's folder depends on a working folder that has changed. `before`: the one at the import."""
    if run_dir.is_absolute() or here() == before or (run_dir / "journal").exists():
        return
    _log.warning(_ELSEWHERE, run_dir.absolute(), str(run_dir))
