"""Still pictures of curves, for paper and for a browser without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tolariad.forensics.report.pyramid import Curve

_WIDTH: Final = 1000
_HEIGHT: Final = 220
_LEFT: Final = 70
_BOTTOM: Final = 20
_COLUMNS: Final = 500
_GREATEST: Final = 1e300


def picture(curves: Sequence[Curve], marks: Sequence[float]) -> str:
    """Return an SVG of the curves, the first in the class `a` and the second in `b`, with a line at each mark."""
    points = [list(_points(one)) for one in curves]
    every = [point for one in points for point in one]
    if not every:
        return '<p class="dim">No finite value.</p>'
    x_low, x_high = min(x for x, _, _ in every), max(x for x, _, _ in every)
    y_low, y_high = min(low for _, low, _ in every), max(high for _, _, high in every)

    def across(x: float) -> float:
        return _LEFT + (x - x_low) / ((x_high - x_low) or 1) * (_WIDTH - _LEFT)

    def down(y: float) -> float:
        return (_HEIGHT - _BOTTOM) * (1 - (y - y_low) / ((y_high - y_low) or 1))

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']
    for value in (y_low, (y_low + y_high) / 2, y_high):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{down(value):.1f}" y2="{down(value):.1f}"/>')
        parts.append(f'<text x="0" y="{max(11.0, down(value)):.1f}">{value:.4g}</text>')
    for value in (x_low, x_high):
        at = min(across(value), _WIDTH - 60)
        parts.append(f'<text x="{at:.1f}" y="{_HEIGHT - 4}">{value:.10g}</text>')
    for mark in marks:
        if x_low <= mark <= x_high:
            at = across(mark)
            parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{_HEIGHT - _BOTTOM}"/>')
    for name, one in zip("ab", points, strict=False):
        line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, low, high in one for y in dict.fromkeys((low, high)))
        parts.append(f'<polyline class="{name}" points="{line}"/>')
    return "".join([*parts, "</svg>"])


def _points(curve: Curve) -> Iterator[tuple[float, float, float]]:
    """Yield place, least and greatest value of at most `_COLUMNS` columns."""
    size = -(-len(curve.x) // _COLUMNS) or 1
    for start in range(0, len(curve.x), size):
        low = [one for one in curve.low[start : start + size] if one is not None and abs(one) < _GREATEST]
        high = [
            one for one in (curve.high or curve.low)[start : start + size] if one is not None and abs(one) < _GREATEST
        ]
        if low and high:
            yield curve.x[start], min(low), max(high)
