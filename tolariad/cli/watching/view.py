"""What the screen of `tolaria watch` shows at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tolariad.cli.plot import Curve, Panel
from tolariad.cli.watching.seen import Seen, SeenCheckpoint, Series
from tolariad.control.reply_tables import RateTable

_MARKS_MAX: Final = 12
Status = Mapping[str, Any]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment.

    * `where`: how the user named the run.
    * `link`: a sentence that says why this is not live; empty if it is.
    * `status`: as the fields of RunStatus; None before the first answer.
    * `rates`: None if they are not known.
    * `breakers`: the budgets with an open breaker; None if they are not known.
    * `panels`: the curves, the most important one first.
    * `checkpoints`: the newest ones, the newest last.
    """

    where: str
    link: str = ""
    status: Status | None = None
    rates: RateTable | None = None
    breakers: tuple[str, ...] | None = None
    panels: tuple[Panel, ...] = ()
    checkpoints: tuple[SeenCheckpoint, ...] = ()


def panels_of(seen: Seen) -> tuple[Panel, ...]:
    """Return the curves: the loss with that of the validations; and the accuracy, else another result, else the rate.

    A number without a value that can be drawn has no panel.
    """
    results = seen.validations
    chosen = next((name for name in ("accuracy", *results) if name in results and name != "loss"), None)
    second = Panel(chosen, [_curve(chosen, results[chosen])]) if chosen else Panel("lr", [_curve("lr", seen.lr)])
    curves = [_curve("loss", seen.loss), *([_marks("val_loss", results["loss"])] if "loss" in results else [])]
    found = (Panel(_title(seen), curves), second)
    return tuple(one for one in found if any(curve.size for curve in one.curves))


def _curve(name: str, series: Series) -> Curve:
    points = series.points()
    return Curve(name, [points] if points else [], series.left_out)


def _marks(name: str, series: Series) -> Curve:
    """Return a curve that is drawn over another one: a few of its points, so that both can be seen."""
    points = series.points()
    count = len(points)
    spread = range(_MARKS_MAX) if count > _MARKS_MAX else ()
    few = [points[(count - 1) * index // (_MARKS_MAX - 1)] for index in spread] or points
    return Curve(name, [few] if few else [], 0)


def _title(seen: Seen) -> str:
    return f"loss ({seen.loss.left_out} not finite)" if seen.loss.left_out else "loss"
