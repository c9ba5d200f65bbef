"""Print to stdout, as text or JSON. Colours are used only on a terminal that shows them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

import click

from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.wrapping import columns_of, filled, fitted_to, width
from tolariad.core.calc.text.phrases import counted as counted  # noqa: PLC0414 - for commands
from tolariad.core.calc.text.phrases import size as size  # noqa: PLC0414 - for commands
from tolariad.core.calc.text.plain import escaped_json, safe, safe_lines

_F = TypeVar("_F", bound=Callable[..., Any] | click.Command)
_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_OWN: Final = frozenset(f"\x1b[{code}m" for code in ("0", *_COLOURS.values()))
COLUMNS: Final = 80
# The last column of a table is broken within itself if it has so much room, else its rest is indented.
_LAST_COLUMN_MIN: Final = 20
_FURTHER: Final = 4
OWN_MARKS: Final = re.compile("(\x1b\\[[0-9]{1,2}m)")


def to_file(help_: str, *, required: bool = False) -> Callable[[_F], _F]:
    """Return the option `-o FILE`."""
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option("-o", "--output", "file", required=required, type=kind, help=help_)


def in_style(*styles: str, more: str = "") -> Callable[[_F], _F]:
    """Return the option `-o STYLE` for events. `more` is added to its help."""
    about = f"The format of an event: verbose has all fields{more}."
    kind = click.Choice(("short", *styles))
    return click.option("-o", "--output", "style", type=kind, default="short", show_default=True, help=about)


def colours_wanted(stream: TextIO) -> bool:
    """Return whether to colour: NO_COLOR and FORCE_COLOR decide, else whether the stream is a terminal, not `dumb`."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return `text` in a colour, or unchanged if the stream wants none."""
    wanted = colours_wanted(stream if stream is not None else sys.stdout)
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if wanted and colour else text


def on_disk(files: int, unpacked: int) -> str:
    """Return how many bytes the files of a journal take, and how many they hold if they are packed."""
    packed = f", {size(unpacked)} unpacked" if unpacked > files else ""
    return f"{size(files)} on disk{packed}"


def shown(text: str) -> str:
    """Return `text` without control characters, except line ends and the colours of this module.

    Commands escape text from outside when they format it. This is a second barrier.
    """
    return "".join(part if part in _OWN else safe_lines(part) for part in OWN_MARKS.split(text))


def printable(value: Any) -> Any:
    """Return a copy of plain values in which every text is one line without control characters."""
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, dict):
        return {printable(key): printable(one) for key, one in value.items()}
    return [printable(one) for one in value] if isinstance(value, list | tuple) else value


def put(text: str, *, indent: int | None = None, flush: bool = False) -> None:
    """Print a line of the answer to stdout. With `indent`, break it for a terminal and indent further lines so far."""
    for line in [text] if indent is None else fitted_to(sys.stdout, text, indent):
        print(shown(line), flush=flush)


def table(rows: Sequence[tuple[str, ...]], numbers: Container[int] = (), gap: str = "  ") -> Iterator[str]:
    """Yield a line for each row, with columns as wide as their widest cell; those in `numbers` are set to the right."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield gap.join(filled(cell, widths[n], to_right=n in numbers) for n, cell in enumerate(row)).rstrip()


def put_rows(
    rows: Sequence[Mapping[str, Any]],
    head: tuple[str, ...],
    cells: Callable[[Mapping[str, Any]], tuple[str, ...]],
    *,
    as_json: bool,
) -> None:
    """Print rows as JSON lines, or as a table with this head; nothing if there are no rows."""
    if as_json:
        for row in rows:
            put_json(row)
    elif rows:
        put_table([head, *map(cells, rows)])


def put_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows as a table. If it is too wide for the terminal: closer columns, and the last one is broken."""
    columns, gap = columns_of(sys.stdout), "  "
    if columns is not None and max(map(width, table(rows))) > columns:
        gap = " "
    before = sum(max(map(width, column)) + len(gap) for column in list(zip(*rows, strict=True))[:-1])
    room = (columns or COLUMNS) - before
    for line in table(rows, gap=gap):
        put(line, indent=before if room >= _LAST_COLUMN_MIN else _FURTHER)


def json_line(value: Mapping[str, Any]) -> str:
    """Return a JSON object on one line."""
    import json

    return escaped_json(json.dumps(value, ensure_ascii=False, allow_nan=False))


def put_json(value: Mapping[str, Any]) -> None:
    """Print a JSON object on one line and flush it: a program may be waiting for it."""
    print(json_line(value), flush=True)


def note(text: str) -> None:
    """Print to stderr a line that is not part of the answer, broken to fit a terminal."""
    for line in fitted_to(sys.stderr, text):
        print(shown(line), file=sys.stderr)


def confirm(
    question: str,
    *,
    nobody: str = "this can lose work, and there is no terminal to ask on",
    hint: str = "add --yes to go ahead",
    declined: str = "nothing was ordered",
) -> None:
    """Ask on a terminal. Raises CommandError: `nobody` if there is no terminal, `declined` if the answer is no."""
    if not sys.stdin.isatty():
        raise CommandError(Exit.USAGE, nobody, hint=hint)
    *lines, last = fitted_to(sys.stderr, f"{question} [y/N]:")
    for line in lines:
        print(shown(line), file=sys.stderr)
    if not click.confirm(shown(last), err=True, prompt_suffix=" ", show_default=False):
        raise CommandError(Exit.NO, declined, name="NotConfirmed")


def age(seconds: float | None) -> str:
    """Return the greater unit of `duration`: tables have no room for the smaller one."""
    return " ".join(duration(seconds).split()[:2])


def duration(seconds: float | None) -> str:
    """Return seconds as `850 ms`, `12 s`, `3 min 20 s`, `2 h 5 min` or `3 d 4 h`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = int(seconds)
    for unit, name, smaller, smaller_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {smaller_name}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def number(value: Any, state: Any = None) -> str:
    """Return a number with four digits. None gives `state` (`nan`, `inf`) if it is not finite, else a dash."""
    if value is None:
        return str(state) if state and state != "finite" else "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
