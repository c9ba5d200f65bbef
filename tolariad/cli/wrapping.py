"""Wrap what people read to the width of their terminal. Elsewhere a line stays a line: files are searched by lines."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final, TextIO

_COLOURS: Final = re.compile("\x1b\\[[0-9]{1,2}m")
# A command is copied with the mouse: a line end within it would run half of it.
_COMMAND: Final = re.compile(r"tolariad? [a-z]")
_PIECES: Final = re.compile(r"\s*(?:`tolariad? [^`]*`\S*|\S+)")


def width(text: str) -> int:
    """Return the columns that the text takes; colours take none, and a Chinese character two."""
    plain = _COLOURS.sub("", text)
    return len(plain) if plain.isascii() else sum(map(columns_taken, plain))


@functools.lru_cache(maxsize=4096)
def columns_taken(character: str) -> int:
    """Return the columns that one character takes: 0, 1 or 2."""
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def filled(text: str, columns: int, *, to_right: bool = False) -> str:
    """Return the text with spaces up to so many columns, after it or before it; a longer one as it is."""
    space = " " * (columns - width(text))
    return space + text if to_right else text + space


def clipped(text: str, columns: int) -> str:
    """Return the beginning of a text without colours that takes at most so many columns."""
    if width(text) <= columns:
        return text
    taken = 0
    for index, character in enumerate(text):
        taken += columns_taken(character)
        if taken > columns:
            return text[:index]
    return text


def fitted_to(stream: TextIO, text: str, indent: int = 0) -> list[str]:
    """Return a line as lines that fit the terminal, or as it is if `stream` is none.

    A line is broken at spaces, never within a word or a command. Further lines are indented.
    """
    columns = columns_of(stream)
    return [text] if columns is None else wrapped(text, max(indent + 20, columns), indent)


def columns_of(stream: TextIO) -> int | None:
    """Return the width of the terminal; None if `stream` is none."""
    if not stream.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def wrapped(text: str, columns: int, indent: int) -> list[str]:
    """Return `text` in lines of at most `columns`; words are separated as before, but for those at a line's end."""
    if width(text) <= columns:
        return [text]
    command = _COMMAND.match(text.lstrip())
    lines, line = [], ""
    for piece in [text] if command else _PIECES.findall(text):
        if line.strip() and width(line + piece) > columns:
            lines.append(line)
            line = " " * indent + piece.lstrip()
        else:
            line += piece
    return [*lines, line]
