"""Private name or public way: the choice, made once for a process."""

from __future__ import annotations

import os
from typing import Any, Final

import torch

VARIABLE: Final = "TOLARIAD_TORCH"
# Read at import: a change in the middle of a run would mix the two ways.
ONLY_PUBLIC: Final = os.environ.get(VARIABLE) == "public"
# The minor versions of torch that the tests ran with: docs/versions.md says which tests.
TRIED: Final = ("2.11", "2.12", "2.13", "2.14")
# Names that this torch does not have, with what is off without them.
_absent: Final[dict[str, str]] = {}


def private(owner: Any, name: str, off: str = "") -> Any:
    """Return the attribute `name` of `owner`; None if torch does not have it, or only public ways are wanted.

    `off` names what is off, or slower, without the attribute. `notes` says it if torch does not have the name.
    """
    found = getattr(owner, name, None)
    if found is None and off:
        _absent[name] = off
    return None if ONLY_PUBLIC else found


def notes() -> tuple[str, ...]:
    """Return what the user should know of this torch before the run begins: one sentence for each matter."""
    version = str(torch.__version__)
    found = [f"torch {version} has no {name}: {off}" for name, off in _absent.items()]
    if ONLY_PUBLIC:
        found.append(f"{VARIABLE}=public: private names of torch are not used, so steps and starts may take longer")
    if not version.startswith(tuple(f"{one}." for one in TRIED)):
        first, last = TRIED[0], TRIED[-1]
        found.append(f"torch {version} is not among the versions that the tests ran with ({first} to {last})")
    return tuple(found)
