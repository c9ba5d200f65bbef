"""Names as MLflow takes them for keys of metrics, parameters and tags. Pure.

MLflow refuses a whole request if one key has other characters than letters, digits, `_`, `-`, `.`, `/` and space, is
longer than 250 characters, begins with two dots, or is no plain relative path: `a//b`, `/a`, `a/`
(mlflow.utils.validation).

Promises: a name that MLflow takes is its own key. Any other has the same key in every process, and two names have two
keys: a part of the name's hash stands at the end.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

_CHARACTERS_MAX: Final = 250
_HASH_CHARACTERS: Final = 8
_ODD: Final = re.compile(r"[^\w./ -]")
# Of which a path would lead elsewhere.
_NO_FOLDERS: Final = ("", ".", "..")


@lru_cache(maxsize=4096)
def key_of(name: str) -> str:
    """Return the key of a name."""
    parts = _ODD.sub("_", name).split("/")
    key = re.sub(r"^\.\.", "_.", "/".join("_" if part in _NO_FOLDERS else part for part in parts))
    if key == name and len(key) <= _CHARACTERS_MAX:
        return key
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_HASH_CHARACTERS // 2).hexdigest()
    # What is cut off may end in a slash.
    return f"{key[: _CHARACTERS_MAX - _HASH_CHARACTERS - 1].rstrip('/')}-{digest}"
