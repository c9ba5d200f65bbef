"""The page: one HTML text with its style, its script and its numbers, which may load nothing.

Promises: every text of a run is escaped, whatever it holds. The policy in the page forbids the network, and any script
or style but those written here, which it knows by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, Final

import msgspec

from tolariad.core.calc.text.phrases import counted
from tolariad.core.calc.text.plain import safe
from tolariad.forensics.report.happenings import Happenings, Table
from tolariad.forensics.report.pyramid import Curve
from tolariad.forensics.report.svg import picture

_MARKS_DRAWN: Final = 200
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """A run on the page.

    `curves`: the curves by name, over the run as it stands (`line`), and over all steps (`executed`) if there are more.
    """

    name: str
    facts: list[tuple[str, str]]
    curves: dict[str, dict[str, Curve]]
    happenings: Happenings


def page(runs: Sequence[RunPage], verdict: Sequence[str] = ()) -> str:
    """Return the page of one run, or of two over each other. `verdict`: what their comparison says."""
    style = _of_package("vendor/uPlot.min.css") + _of_package("page.css")
    library, script = _of_package("vendor/uPlot.iife.min.js"), _of_package("page.js")
    title = " and ".join(_text(run.name) for run in runs)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}' 'unsafe-hashes'; "
        f"script-src '{_hash(library)}' '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>",
            f"<style>{style}</style></head><body>",
            f"<h1>{title}</h1>",
            *(f'<p class="verdict">{_text(line)}</p>' for line in verdict),
            *_facts(runs),
            *_charts(runs),
            *(line for run in runs for line in _of_run(run, alone=len(runs) == 1)),
            f'<script type="application/json" id="data">{_data(runs)}</script>',
            f"<script>{library}</script>",
            f"<script>{script}</script>",
            "</body></html>",
            "",
        ]
    )


def _of_package(name: str) -> str:
    return resources.files("tolariad.forensics.report").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _text(value: object) -> str:
    return html.escape(safe(str(value)))


def _data(runs: Sequence[RunPage]) -> str:
    """Return the numbers as JSON. Inside a script element only `<` could end it."""
    shown: list[dict[str, Any]] = [
        {
            "name": safe(run.name),
            "curves": run.curves,
            "marks": [
                {"kind": one.kind, "step": one.step, "row": one.row, "text": safe(one.text)}
                for one in run.happenings.marks[:_MARKS_DRAWN]
            ],
            "spans": run.happenings.spans,
        }
        for run in runs
    ]
    return msgspec.json.encode({"runs": shown}).decode().replace("<", "\\u003c")


def _facts(runs: Sequence[RunPage]) -> Iterator[str]:
    yield "<table>"
    for number, run in enumerate(runs):
        for name, value in (("run", run.name), *run.facts):
            yield f'<tr><th class="{"ab"[number]}">{_text(name)}</th><td>{_text(value)}</td></tr>'
    yield "</table>"


def _charts(runs: Sequence[RunPage]) -> Iterator[str]:
    yield "<h2>Numbers</h2>"
    if any("executed" in run.curves for run in runs):
        yield (
            '<p class="controls scripted">Order: <button data-axis="line" aria-pressed="true">the run as it stands'
            '</button> <button data-axis="executed" aria-pressed="false">as executed, with steps given up</button></p>'
        )
    yield (
        '<p class="dim scripted">Drag to zoom, double-click for everything. By keyboard: Tab to a chart, then + - '
        "&larr; &rarr; and 0.</p>"
    )
    for name in dict.fromkeys(name for run in runs for name in run.curves["line"]):
        curves = [run.curves["line"][name] for run in runs if name in run.curves["line"]]
        lost = sum(one.not_finite for one in curves)
        note = f' <span class="dim">({counted(lost, "value")} not finite)</span>' if lost else ""
        marks = [float(one.step) for run in runs for one in run.happenings.marks[:_MARKS_DRAWN]]
        yield f"<h3>{_text(name)}{note}</h3>"
        yield f'<div class="still">{picture(curves, marks)}</div>'
        yield (
            f'<div class="chart scripted" data-name="{_text(name)}" tabindex="0" role="group" '
            f'aria-label="{_text(name)}"><p class="told dim" aria-live="polite"></p></div>'
        )


def _of_run(run: RunPage, *, alone: bool) -> Iterator[str]:
    yield f"<h2>{'What the time was spent on' if alone else f'{_text(run.name)}: what the time was spent on'}</h2>"
    yield from _spent(run.happenings.spent)
    yield "<h2>Events</h2>"
    marks = run.happenings.marks
    rows: list[tuple[str, ...]] = [(one.kind, str(one.step), str(one.seq), one.text) for one in marks[:_MARKS_DRAWN]]
    yield from _table(Table("", ("kind", "step", "event", "what happened"), rows, max(0, len(marks) - len(rows))))
    for table in run.happenings.tables:
        yield f"<h2>{_text(table.title)}</h2>"
        yield from _table(table)


def _spent(spent: dict[str, float]) -> Iterator[str]:
    total = sum(spent.values())
    if not total:
        yield '<p class="dim">Nothing yet.</p>'
        return
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    yield '<svg class="bar" viewBox="0 0 1000 22" preserveAspectRatio="none" role="img">'
    at = 0.0
    for number, (_, seconds) in enumerate(ordered):
        width = 1000 * seconds / total
        yield f'<rect class="spent-{number % 8}" x="{at:.2f}" y="0" width="{width:.2f}" height="22"/>'
        at += width
    yield "</svg>"
    rows: list[tuple[str, ...]] = [(name, _duration(seconds), f"{seconds / total:.1%}") for name, seconds in ordered]
    yield from _table(Table("", ("spent on", "time", "share"), rows))


def _duration(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{1000 * seconds:.0f} ms"


def _table(table: Table) -> Iterator[str]:
    if not table.rows:
        yield '<p class="dim">None.</p>'
        return
    yield "<table><tr>" + "".join(f"<th>{_text(one)}</th>" for one in table.head) + "</tr>"
    for row in table.rows:
        yield "<tr>" + "".join(f"<td>{_text(one)}</td>" for one in row) + "</tr>"
    yield "</table>"
    if table.left_out:
        yield f'<p class="dim">{counted(table.left_out, "further row")} are in the journal.</p>'
