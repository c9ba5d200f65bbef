"""Recognise a traceback in what a trainer prints: the next trainer prints the same one no second time."""

from __future__ import annotations

import hashlib
from typing import Final

HEAD: Final = "Traceback (most recent call last):"
# Takes the place of the frames.
AS_BEFORE: Final = " as before"
_OF_GROUP: Final = f"Exception Group {HEAD}"


def last_traceback(text: str) -> str:
    """Return what follows the last traceback's head, or the empty string if there is none."""
    return text.rpartition(HEAD)[2] if HEAD in text else ""


def mark_of(text: str) -> str:
    """Return a short name of the last traceback in `text`; empty if there is none, or if it has no frames.

    So it is for a group of exceptions, which is printed whole each time.
    """
    last = last_traceback(text).strip()
    if not last or last.startswith(AS_BEFORE.strip()) or _OF_GROUP in text:
        return ""
    return hashlib.sha256(last.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def shortened(text: str, printed: str) -> str:
    """Return `text` with its last lines only, if its mark is `printed`: what was printed once is not printed again."""
    if not printed or mark_of(text) != printed:
        return text
    lines = last_traceback(text).strip("\n").split("\n")
    # The frames are indented; the exception's own lines come after the last of them.
    last_frame = max((at for at, line in enumerate(lines) if line.startswith("  ")), default=-1)
    own = "\n".join(lines[last_frame + 1 :]) or lines[-1]
    return f"{HEAD}{AS_BEFORE}\n{own}\n"
