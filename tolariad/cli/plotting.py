"""Draw curves as text, for a terminal or a log.

Promises: no line is longer than `columns`. Values that are not finite are left out. If the stream cannot show
Unicode, `for_stream` gives plain ASCII.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TextIO

# Columns for a tick of the x axis. If two labels meet, plotext drops one of them, by chance.
_TICK_COLUMNS: Final = 8
_ASCII: Final = str.maketrans(dict.fromkeys("┌┐└┘├┤┬┴┼", "+") | {"─": "-", "│": "|", "•": "*"})


class Curve(NamedTuple):
    """A curve: its name for the legend, and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def drawn(
    curves: Sequence[Curve],
    *,
    columns: int = 80,
    rows: int = 18,
    title: str = "",
    log_x: bool = False,
    marks: Sequence[float] = (),
    fine: bool = True,
) -> str:
    """Return the curves as lines of text. `log_x`: the x axis is logarithmic; `marks`: x of vertical lines.

    `fine`: draw in dots of Braille, eight to a character. Raises ValueError if there is no finite point.
    """
    shown = [_finite(curve, log_x=log_x) for curve in curves]
    shown = [curve for curve in shown if curve.x]
    if not shown:
        raise ValueError("there is no finite point to draw")
    plotext = figure(columns, rows, title)
    for curve in shown:
        plotext.plot(
            list(curve.x), list(curve.y), marker="braille" if fine else "•", label=curve.name if shown[1:] else None
        )
    for mark in marks:
        plotext.vline(math.log10(mark) if log_x else mark)
    if log_x:
        plotext.xticks(*_decades([x for curve in shown for x in curve.x], columns // _TICK_COLUMNS - 1))
    return lines_of(plotext)


def figure(columns: int, rows: int, title: str) -> Any:
    """Return plotext with an empty figure: it has one, which belongs to the process."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)
    plotext.plotsize(columns, rows)
    if title:
        plotext.title(title)
    return plotext


def lines_of(plotext: Any, *, colours: bool = False) -> str:
    """Return the figure as lines of text."""
    text = str(plotext.build())
    return "\n".join(line.rstrip() for line in (text if colours else str(plotext.uncolorize(text))).splitlines())


def for_stream(text: str, stream: TextIO) -> str:
    """Return the drawing in characters that the stream can encode."""
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return "".join("*" if "⠀" <= one <= "⣿" else one for one in text.translate(_ASCII))
    return text


def _finite(curve: Curve, *, log_x: bool) -> Curve:
    """Return the finite points, with the logarithm of x if wanted."""
    points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    return Curve(curve.name, [math.log10(x) if log_x else x for x, _ in points], [y for _, y in points])


def _decades(logs: Sequence[float], most: int) -> tuple[list[int], list[str]]:
    """Return at most `most` ticks of a logarithmic axis: whole powers of ten, and how they are written."""
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    step = -(-(high - low + 1) // max(1, most))
    ticks = [tick for tick in range(low, high + 1, step) if min(logs) - 1e-9 <= tick <= max(logs) + 1e-9]
    return ticks, [f"{10**tick:g}" if -4 < tick < 4 else f"1e{tick}" for tick in ticks]
