"""Secrets that the configuration refers to: a variable, a file, or a credential of the service manager."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_BYTES_MAX: Final = 1 << 16


class SecretMissing(Exception):
    """There is no secret where the configuration says."""


def read_secret(reference: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the secret, without the end of its line. Raises SecretMissing. Call it in a thread: a disk may hang."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        found = environ.get(name)
        if not found:
            raise SecretMissing(f"the variable {name} is not set for the daemon")
        return found
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if kind == "credential" and not folder:
        raise SecretMissing(f"there is no credential {name}: no service manager has passed any (LoadCredential=)")
    path = Path(folder or "", name) if kind == "credential" else Path(name)
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretMissing(f"{path} cannot be read: {error}") from error
    if not content:
        raise SecretMissing(f"{path} is empty")
    return content
