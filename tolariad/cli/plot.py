"""`tolaria plot`: curves of a run's numbers over its steps, on the terminal or as an image.

Promises: every spike is drawn, however many steps there are: of those that share a column, the least and the greatest
value are drawn. A loss that is not finite leaves a gap, and the title counts them.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from tolariad.cli import naming, output, plotting
from tolariad.cli.completing import run_names
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.long_work import bar
from tolariad.cli.metrics import known, run_and_names
from tolariad.core.calc.text.phrases import listed
from tolariad.core.calc.text.plain import safe
from tolariad.forensics import numbers

_METRICS_SHOWN: Final = 4
_HEIGHT_MIN, _HEIGHT_MAX = 9, 16
_IMAGE_COLUMNS: Final = 2000
# Between two steps with a loss there is always another loss, so one that is missing is not finite.
_WITHOUT_GAPS: Final = ("loss", "lr")
_FORMATS: Final = (".png", ".svg")
# Axes are computed from differences of values, which must be finite and not zero.
_GREATEST: Final = 1e300
_LEAST_RANGE: Final = 1e-290
_TITLE_CHARACTERS_MAX: Final = 200

Points = list[tuple[float, float]]


class Curve(NamedTuple):
    """Lines of (step, value), with a gap between each two.

    `left_out` is the number of values that cannot be drawn.
    """

    name: str
    lines: list[Points]
    left_out: int

    @property
    def size(self) -> int:
        """The number of points."""
        return sum(map(len, self.lines))


class Panel(NamedTuple):
    """The curves of one picture: a number, and the same of the validations."""

    title: str
    curves: list[Curve]


@click.command()
@click.argument("arguments", nargs=-1, metavar="[RUN] [NAME]...", shell_complete=run_names)
@output.to_file("Write an image: a file that ends in .png or .svg.")
@click.option("--log", "is_log", is_flag=True, help="Logarithmic axes, but for the learning rate.")
@click.option("--json", "as_json", is_flag=True, help="Print the points as one JSON object; with -o the file's name.")
@naming.options
def plot(*, arguments: tuple[str, ...], file: Path | None, is_log: bool, as_json: bool, **place: Any) -> None:
    """Draw the numbers of RUN over its steps.

    They are loss, the task's metrics and learning rate, or each NAME. The results of the validations are drawn into the
    same pictures. `tolaria metrics RUN` prints the names.
    """
    if file is not None and file.suffix.lower() not in _FORMATS:
        raise click.UsageError(f"-o {str(file)!r}: the name must end in {' or '.join(_FORMATS)}")
    journal, names = run_and_names(arguments, place)
    with bar("reading"):
        there = _curves(journal)
    chosen = [known(name, there) for name in names] or _usual(there)
    panels = [_panel(name, there, is_log=is_log, alone=bool(names)) for name in chosen]
    drawn = [panel for panel in panels if any(curve.size for curve in panel.curves)]
    for panel in panels:
        if panel not in drawn:
            output.note(f"{panel.title}: there is nothing to draw yet")
    if drawn and file is not None:
        _write(drawn, file, journal.parent.name, is_log=is_log)
        if not as_json:
            output.put(f"{file} written: {listed(panel.title for panel in drawn)}")
    elif drawn and not as_json:
        _draw(drawn, is_log=is_log)
    if as_json:
        points = [{"title": one.title, "curves": [curve._asdict() for curve in one.curves]} for one in drawn]
        written = {"file": str(file), "titles": [one.title for one in drawn]}
        output.put_json(written if drawn and file is not None else {"panels": points})


def _curves(journal: Path) -> dict[str, Points]:
    """Return the values by name, each with its step."""
    steps, validations = numbers.steps_of(journal), numbers.validations_of(journal)
    found = {name: list(zip(steps.step, values, strict=True)) for name, values in steps.by_name.items()}
    for name in numbers.names_of(validations):
        found[name] = [(one.step, one.by_name[name]) for one in validations if name in one.by_name]
    return found


def _usual(there: Iterable[str]) -> list[str]:
    """Return what is drawn if nobody asked for something: loss, metrics, learning rate."""
    metrics = [name for name in there if name not in numbers.OF_EVERY_STEP]
    validations = [name for name in metrics if name.startswith(numbers.OF_A_VALIDATION)]
    # Those of a number that is drawn anyway go into its picture.
    own = [name for name in metrics if name not in validations]
    own += [name for name in validations if name.removeprefix(numbers.OF_A_VALIDATION) not in ("loss", *own)]
    if more := own[_METRICS_SHOWN:]:
        output.note(f"not drawn: {', '.join(map(safe, more))}; name those that you want to see")
    return ["loss", *own[:_METRICS_SHOWN], "lr"]


def _panel(name: str, there: dict[str, Points], *, is_log: bool, alone: bool) -> Panel:
    """Return the picture of a number. `alone`: without its validations, because the user named what to draw."""
    of_validations = f"{numbers.OF_A_VALIDATION}{name}"
    together = [name] if alone or of_validations not in there else [name, of_validations]
    curves = [_curve(one, there[one], only_positive=is_log and one != "lr") for one in together]
    left_out = sum(curve.left_out for curve in curves)
    why = "not finite or not positive" if is_log else "not finite"
    return Panel(_label(name) + (f" ({left_out} {why})" if left_out else ""), curves)


def _label(name: str) -> str:
    return safe(name[:_TITLE_CHARACTERS_MAX])


def _curve(name: str, points: Points, *, only_positive: bool) -> Curve:
    lines: list[Points] = [[]]
    left_out = 0
    for step, value in points:
        # One that is too large for an axis counts as one that is not finite.
        if abs(value) < _GREATEST and (value > 0 or not only_positive):
            lines[-1].append((step, value))
            continue
        # A NaN of a metric is a step without it: the curve goes on over it.
        if name in _WITHOUT_GAPS or not math.isnan(value):
            left_out += 1
            if lines[-1]:
                lines.append([])
    return Curve(name, [line for line in lines if line], left_out)


def thinned(points: Points, columns: int) -> Points:
    """Return at most two points for each of so many columns: those with the least and the greatest value, in order."""
    if len(points) <= 2 * columns:
        return points
    first, width = points[0][0], max(1.0, points[-1][0] - points[0][0] + 1) / columns
    found: Points = []
    column: Points = []
    at = 0
    for point in points:
        if (point[0] - first) // width > at:
            found += _extremes(column)
            column, at = [], int((point[0] - first) // width)
        column.append(point)
    return found + _extremes(column)


def _extremes(points: Points) -> Points:
    if not points:
        return []
    return sorted({min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])})


# -- on the terminal ---------------------------------------------------------------------------------------------------


def _draw(panels: Sequence[Panel], *, is_log: bool) -> None:
    columns, rows = shutil.get_terminal_size()
    height = min(_HEIGHT_MAX, max(_HEIGHT_MIN, (rows - 2) // len(panels)))
    for panel in panels:
        colours = output.colours_wanted(sys.stdout)
        text = drawn(panel, columns, height, is_log=is_log and panel.curves[0].name != "lr", colours=colours)
        print(plotting.for_stream(text, sys.stdout))


def drawn(panel: Panel, columns: int, height: int, *, is_log: bool = False, colours: bool = False) -> str:
    """Return the picture as lines of text."""
    plotext = plotting.figure(columns, height, panel.title)
    for curve, colour, mark in zip(panel.curves, ("blue", "orange"), ("braille", "x"), strict=False):
        label = _label(curve.name) if len(panel.curves) > 1 else None
        for line in curve.lines:
            points = thinned(line, 2 * columns)
            steps, values = [point[0] for point in points], [_scaled(point[1], is_log=is_log) for point in points]
            if mark == "braille" and curve.size > 1:
                plotext.plot(steps, values, marker=mark, color=colour, label=label)
            else:
                plotext.scatter(steps, values, marker="x", color=colour, label=label)
            label = None
    all_points = [point for curve in panel.curves for line in curve.lines for point in line]
    _set_axes(plotext, [point[0] for point in all_points], [point[1] for point in all_points], height, is_log=is_log)
    return plotting.lines_of(plotext, colours=colours)


def _scaled(value: float, *, is_log: bool) -> float:
    return math.log10(value) if is_log else value


def _set_axes(plotext: Any, steps: Sequence[float], values: Sequence[float], height: int, *, is_log: bool) -> None:
    """Whole steps below, and numbers with four digits at the side."""
    ticks = sorted({round(at) for at in _spread(min(steps), max(steps), 5)})
    plotext.xticks(ticks, [str(tick) for tick in ticks])
    low, high = _scaled(min(values), is_log=is_log), _scaled(max(values), is_log=is_log)
    is_flat = high - low < _LEAST_RANGE
    if is_flat:
        half = max(abs(low), _LEAST_RANGE) / 2 if low else 0.5
        plotext.ylim(low - half, high + half)
    marks = [low] if is_flat else _spread(low, high, max(2, height // 3))
    plotext.yticks(marks, [f"{10**mark if is_log else mark:.4g}" for mark in marks])


def _spread(low: float, high: float, count: int) -> list[float]:
    return [low + (high - low) * index / (count - 1) for index in range(count)]


# -- as an image -------------------------------------------------------------------------------------------------------


def _write(panels: Sequence[Panel], file: Path, title: str, *, is_log: bool) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        why = "an image needs matplotlib, which is not installed"
        hint = "pip install 'tolariad[plot]'; without -o the curves are drawn on the terminal"
        raise CommandError(Exit.NO, why, hint=hint, name="NoMatplotlib") from error
    figure = Figure(figsize=(9, 2.6 * len(panels) + 0.5), layout="constrained")
    figure.suptitle(_plain(title))
    for axes, panel in zip(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels, strict=True):
        _put_curves(axes, panel)
        axes.set_ylabel(_plain(panel.title))
        axes.set_yscale("log" if is_log and panel.curves[0].name != "lr" else "linear")
        axes.grid(visible=True, alpha=0.3)
    axes.set_xlabel("step")
    figure.savefig(file, format=file.suffix[1:].lower(), dpi=150)


def _put_curves(axes: Any, panel: Panel) -> None:
    for number, curve in enumerate(panel.curves):
        label: str | None = _plain(curve.name)
        for line in curve.lines:
            points = thinned(line, _IMAGE_COLUMNS)
            marker = "o" if number or len(points) == 1 else None
            axes.plot(*zip(*points, strict=True), color=f"C{number}", marker=marker, markersize=3, lw=1, label=label)
            label = None
    if len(panel.curves) > 1:
        axes.legend()


def _plain(text: str) -> str:
    """Return text that matplotlib does not take for mathematics."""
    return _label(text).replace("$", r"\$")
