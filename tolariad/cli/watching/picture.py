"""The screen of `tolaria watch` as lines of text: a pure function of a view and the size of the terminal.

Promises: exactly as many lines as there are rows, none wider than the terminal. No text of the run controls the
terminal, whatever it holds. If rows are missing, the curves go first, then facts, then the oldest sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Final, NamedTuple

from tolariad.cli import plot
from tolariad.cli.output import OWN_MARKS, number, size
from tolariad.cli.plot import Panel
from tolariad.cli.status_words import STARTS, facts, figures, fitted, lately, phase_words, place
from tolariad.cli.watching.view import Status, View
from tolariad.cli.wrapping import clipped, filled, width, wrapped
from tolariad.forensics.words import safe

KEYS: Final = "p pause   r resume   c checkpoint   n note   q quit"
_ONLY_QUIT: Final = "q quit"
_LABEL: Final = 12
_FACT_LINES_MAX: Final = 2
_SENTENCES_MIN: Final = 4
_FACTS_MIN: Final = 6
_CURVES_MIN, _CURVES_MAX = 8, 16
_CURVE_COLUMNS_MIN: Final = 32
_LOGARITHMIC_FROM: Final = 50.0
_STYLES: Final = {
    "running": "green",
    "completed": "green",
    "paused": "yellow",
    "stopped": "yellow",
    "frozen": "red",
    "failed": "red",
}
# Facts that need somebody's attention stand first, in this colour.
_URGENT: Final = {
    "ordered": "yellow",
    "frozen": "red",
    "last error": "red",
    "disk": "red",
    "emergency": "red",
    "mode": "yellow",
    "memory": "yellow",
}
_FURTHER: Final = ("ranks", "seeds", "pruning", "strategy", "stage", "detector")
_DRAWN: Final = re.compile("([⠁-⣿]+)")


class Span(NamedTuple):
    """Text in one style: a colour, `bold`, `dim`, or none."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


class Curves:
    """Draws curves side by side, or the first alone if the terminal is narrow.

    It keeps the last picture: plotext needs more processor time than all the rest of the screen.
    """

    def __init__(self) -> None:
        self._of: tuple[tuple[Panel, ...], int, int] = ((), 0, 0)
        self._lines: list[Line] = []

    def drawn(self, panels: tuple[Panel, ...], columns: int, height: int) -> list[Line]:
        """Return the curves as lines; none if there is nothing to draw."""
        former, *size_ = self._of
        if former is not panels or size_ != [columns, height]:
            self._lines, self._of = _curves(panels, columns, height), (panels, columns, height)
        return self._lines


def picture(view: View, columns: int, rows: int, *, said: str = "", curves: Curves | None = None) -> list[Line]:
    """Return the screen, from top to bottom. `said`: what became of the user's last order, above the keys."""
    status = view.status
    if status is None:
        lines = [_line(view.where, "bold"), *map(_line, wrapped(safe(view.link), columns, 0))]
        return _sized(lines, [_line(_ONLY_QUIT, "dim")], columns, rows)
    head = [_name(view, status), _line(_figures(status, columns))]
    if view.link:
        head += [_line(one, "yellow") for one in wrapped(safe(view.link), columns, 0)[:2]]
    room = rows - len(head) - 2
    most = max(room - _SENTENCES_MIN - _CURVES_MIN, min(room - _SENTENCES_MIN, _FACTS_MIN), 0)
    told = list(_facts(view, status, columns))[:most]
    sentences = [_sentence(time, text, columns) for time, text in lately(status)]
    left = room - len(told)
    # The curves take a bit more than half of the rest, and what the sentences do not need.
    height = min(_CURVES_MAX, max(left - sum(map(len, sentences)), left * 5 // 9))
    height = max(height, min(left - _SENTENCES_MIN, _CURVES_MIN))
    drawn = (curves or Curves()).drawn(view.panels, columns, height) if height >= _CURVES_MIN else []
    newest = _newest(sentences, left - len(drawn))
    keys = KEYS if status["live"] and not view.link else _ONLY_QUIT
    foot = [_line(said, "bold"), _line(keys, "dim")]
    return _sized([*head, *drawn, *told, *newest], foot, columns, rows)


def plain(lines: Sequence[Line]) -> list[str]:
    """Return the lines without styles."""
    return ["".join(span.text for span in line).rstrip() for line in lines]


def _line(text: str, style: str = "") -> Line:
    return (Span(safe(text), style),)


def _unmarked(text: str) -> str:
    """Return a text of `status_words` without the colours that it has for stdout."""
    return OWN_MARKS.sub("", text)


def _sized(lines: Sequence[Line], foot: Sequence[Line], columns: int, rows: int) -> list[Line]:
    """Return exactly `rows` lines within `columns`; the last ones are the foot."""
    room = max(0, rows - len(foot))
    body = [*lines[:room], *[()] * (room - len(lines)), *foot]
    return [_clipped(line, columns) for line in body[-rows:]]


def _clipped(line: Line, columns: int) -> Line:
    found: list[Span] = []
    for span in line:
        text = clipped(safe(span.text), columns)
        columns -= width(text)
        found.append(Span(text, span.style))
    return tuple(found)


def _name(view: View, status: Status) -> Line:
    """Return the first line: name, phase, place."""
    phase = str(status["phase"])
    style = "red" if status.get("dead") else _STYLES.get(phase, "cyan")
    name = safe(str(status["name"] or "(unnamed)"))
    live = "" if status["live"] else ", not live"
    return (Span(name, "bold"), Span("  "), Span(phase_words(status) + live, style), Span(f"  {view.where}", "dim"))


def _figures(status: Status, columns: int) -> str:
    # The first line has the phase already; a start is told more exactly here.
    shown = status if status["phase"] in STARTS else {**status, "phase": "running"}
    where = _unmarked(place(shown))
    told = [(rank, _unmarked(text)) for rank, text in figures(shown)]
    total = status["steps_total"]
    share = [f"{100 * min(1.0, status['step'] / total):.0f} %"] if total else []
    head = "  ".join([where, *share])
    return "  ".join([head, *fitted(told, columns - width(head) - 2)])


def _facts(view: View, status: Status, columns: int) -> Iterator[Line]:
    """Yield the labelled facts: urgent ones, then rates, checkpoints and breakers, then ranks, seeds and the rest."""
    known = {label: _unmarked(text) for label, text in facts(status).items()}
    for label, style in _URGENT.items():
        if label in known:
            yield from _fact(label, known[label], columns, style)
    yield from _fact("rates", _rates(view), columns)
    yield from _fact("checkpoints", _checkpoints(view) or known.get("checkpoint", ""), columns)
    if view.breakers is not None:
        yield from _fact("breakers", _breakers(view.breakers), columns, "yellow" if view.breakers else "")
    for label in _FURTHER:
        yield from _fact(label, known.get(label, ""), columns)


def _fact(label: str, text: str, columns: int, style: str = "") -> Iterator[Line]:
    if not text:
        return
    lines = wrapped(f"{'':<{_LABEL}}{safe(text)}", columns, _LABEL)
    if lines[_FACT_LINES_MAX:]:
        lines[_FACT_LINES_MAX - 1] = clipped(lines[_FACT_LINES_MAX - 1], columns - 2) + " …"
    for index, one in enumerate(lines[:_FACT_LINES_MAX]):
        yield (Span(f"{label if not index else '':<{_LABEL}}", "cyan"), Span(one[_LABEL:], style))


def _rates(view: View) -> str:
    groups = view.rates.groups if view.rates is not None else ()
    return ", ".join(
        f"{safe(one.name)} {number(one.next)} ({'frozen' if one.frozen else safe(one.policy)})" for one in groups
    )


def _checkpoints(view: View) -> str:
    """Return the newest checkpoints, the newest first."""
    told = (
        f"{safe(one.id)} at step {one.step}, {size(one.size)}" + (f", {one.note}" if one.note else "")
        for one in reversed(view.checkpoints)
    )
    return "; ".join(told)


def _breakers(names: Sequence[str]) -> str:
    return f"open: {', '.join(map(safe, names))}" if names else "none is open"


def _curves(panels: Sequence[Panel], columns: int, height: int) -> list[Line]:
    shown = panels[: columns // _CURVE_COLUMNS_MIN][:2]
    if not shown:
        return []
    each = columns // len(shown)
    pictures = [_picture_of(panel, each - 1, height) for panel in shown]
    rows = zip_longest(*pictures, fillvalue="")
    return [tuple(span for one in row for span in _drawn(one, each)) for row in rows]


def _picture_of(panel: Panel, columns: int, height: int) -> list[str]:
    """Return one panel; with a logarithmic axis if nearly all of the curve would else lie on its floor."""
    values = [value for curve in panel.curves for line in curve.lines for _, value in line]
    is_log = min(values) > 0 and max(values) / min(values) >= _LOGARITHMIC_FROM
    title = f"{panel.title}, logarithmic" if is_log else panel.title
    return plot.drawn(panel._replace(title=title), columns, height, is_log=is_log).splitlines()


def _drawn(text: str, columns: int) -> Iterator[Span]:
    """Yield a line of a curve: the dots in a colour, the axes dim."""
    for index, part in enumerate(_DRAWN.split(filled(text, columns))):
        if part:
            yield Span(part, "cyan" if index % 2 else "dim")


def _sentence(time: str, text: str, columns: int) -> list[Line]:
    """Return one of the run's actions, with its time of day, as lines."""
    first, *rest = wrapped(f"{_time_of_day(time)}  {safe(text)}", columns, 10)
    return [(Span(first[:8], "dim"), Span(first[8:])), *map(_line, rest)]


def _newest(sentences: Sequence[list[Line]], rows: int) -> list[Line]:
    """Return the newest sentences that fit whole, in order; of the newest one at least its beginning."""
    found: list[Line] = []
    for one in reversed(sentences):
        if found and len(one) + len(found) > rows:
            break
        found = [*one, *found]
    return found[:rows]


def _time_of_day(time: str) -> str:
    try:
        return f"{datetime.fromisoformat(time).astimezone():%H:%M:%S}"
    except (ValueError, OverflowError):
        return "--:--:--"
