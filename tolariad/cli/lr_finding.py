"""`tolariad lr-find`: sweep the learning rate on a copy of the model, and draw the loss."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from shutil import get_terminal_size
from typing import Any, Final

import click
import msgspec

from tolariad.cli import output, plotting, probes
from tolariad.forensics.words import safe
from tolariad.trainer.probes.messages import Sweep, SweepRates

_STOPS: Final = {
    "diverged": "the smoothed loss is above {times:g} times its best",
    "not_finite": "the next loss is not finite",
}
# How far above the curve before its minimum the drawing goes, as a share of that part's height.
_HEADROOM: Final = 0.5


@click.command("lr-find")
@probes.takes_subject
@click.option("--start", type=click.FloatRange(0, min_open=True), default=1e-7, show_default=True, help="First rate.")
@click.option("--end", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, help="Last rate.")
@click.option("--steps", type=click.IntRange(10, 100_000), default=100, show_default=True, help="Number of steps.")
@click.option("--no-stop", is_flag=True, help="Go on to the last rate although the loss is four times its best.")
@click.option("--csv", "as_csv", is_flag=True, help="Print rate, loss and smoothed loss of each step as CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def lr_find(*, start: float, end: float, steps: int, no_stop: bool, as_csv: bool, as_json: bool, **given: Any) -> int:
    """Suggest a learning rate by a short test.

    The test trains a copy of the model while the rate rises by the same factor in each step (Leslie Smith's range
    test). It draws the loss. With CONFIG the model is new. With --dir it has the weights of the run's checkpoint, and
    optimizers without a past. The run may be live, and nothing of it is changed.
    """
    if end <= start:
        raise click.UsageError(f"--end must be above --start, which is {start:g}")
    with probes.subject(**given) as subject:
        request = SweepRates(config=subject.config, weights=subject.weights, start=start, end=end, steps=steps)
        request = msgspec.structs.replace(request, stop_factor=0.0) if no_stop else request
        found = probes.ask(request, Sweep)
    if as_json:
        output.put_json({"model": subject.words, **msgspec.to_builtins(found)})
    elif as_csv:
        output.put("rate,loss,smoothed")
        for point in found.points:
            output.put(f"{point.rate!r},{point.loss!r},{point.smoothed!r}")
    else:
        columns = min(get_terminal_size((output.COLUMNS, 24)).columns, 120) if sys.stdout.isatty() else output.COLUMNS
        print(plotting.for_stream(_drawing(found, columns), sys.stdout))
        for line in _lines(found, request, subject):
            output.put(safe(line), indent=15)
    return 0


def _drawing(found: Sweep, columns: int) -> str:
    """Return the curve. Of the rise at its end only the beginning is drawn: it would flatten all the rest."""
    smoothed = [point.smoothed for point in found.points]
    lowest = smoothed.index(min(smoothed))
    top = max(smoothed[: lowest + 1])
    limit = top + _HEADROOM * (top - smoothed[lowest]) or float("inf")
    end = next((n for n, loss in enumerate(smoothed) if n > lowest and loss > limit), len(smoothed))
    shown = found.points[:end]
    curve = plotting.Curve("loss", [point.rate for point in shown], [point.smoothed for point in shown])
    marks = () if found.steepest is None else (found.steepest,)
    title = "smoothed loss over the learning rate"
    if end < len(smoothed):
        title += f", to {shown[-1].rate:.3g}: then it rises further"
    return plotting.drawn([curve], columns=columns, title=title, log_x=True, marks=marks)


def _lines(found: Sweep, request: SweepRates, subject: probes.Subject) -> Iterator[str]:
    """Yield what was swept on what, and what follows from it."""
    last, groups = found.points[-1], {group.name: group for group in found.groups}
    configured = groups[found.swept].base_lr
    yield f"model          {subject.words}"
    yield f"swept          {found.swept} from {request.start:g} to {last.rate:.3g}, {len(found.points)} steps"
    others = [f"{group.name} x {group.factor:.4g}" for group in found.groups if group.name != found.swept]
    if others:
        yield f"with it        {', '.join(others)}"
    if found.stopped:
        yield f"stopped        {_STOPS[found.stopped].format(times=request.stop_factor)}"
    yield f"configured     {configured:g}"
    if found.steepest is None or found.tenth is None:
        yield "suggested      nothing: the loss never falls in this range"
        return
    yield f"suggested      {found.steepest:.3g}, where the loss falls fastest (the line in the drawing)"
    yield f"               {found.tenth:.3g}, a tenth of the rate at the minimum"
    if configured == subject.settings.learning_rate.base_lr:
        yield f"               --set learning_rate.base_lr={found.steepest:.3g}"
