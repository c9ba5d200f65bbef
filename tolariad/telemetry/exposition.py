"""Prometheus's text format (0.0.4) of counters, gauges and histograms. Pure.

Source: prometheus.io/docs/instrumenting/exposition_formats. The package prometheus-client is not needed for it: the
values are not counted here, they are given (decision 0105).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


class Sample(msgspec.Struct, frozen=True):
    """One value. `suffix`: what follows the name of the family."""

    value: float
    labels: dict[str, str] = {}
    suffix: str = ""


class Family(msgspec.Struct, frozen=True):
    """All values of one name."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    samples: tuple[Sample, ...]


def gauge(name: str, about: str, value: float | None, **labels: str) -> Family:
    """Return a gauge with one value; without one, if it is None."""
    return Family(name, "gauge", about, () if value is None else (Sample(float(value), labels),))


def counter(name: str, about: str, value: float) -> Family:
    """Return a counter. Its name ends in `_total`."""
    return Family(name, "counter", about, (Sample(float(value)),))


def histogram(
    name: str, about: str, bounds: Sequence[float], counts: Sequence[int], total: float, *, scale: float = 1.0
) -> Family:
    """Return a histogram. `counts`: those in each bucket, and the rest. `scale` multiplies bounds and `total`."""
    passed, samples = 0, []
    for bound, count in zip([*bounds, math.inf], counts, strict=True):
        passed += count
        samples.append(Sample(passed, {"le": _number(bound * scale)}, "_bucket"))
    samples += [Sample(total * scale, {}, "_sum"), Sample(passed, {}, "_count")]
    return Family(name, "histogram", about, tuple(samples))


def text(families: Iterable[Family], common: Labels) -> str:
    """Return the page. Every sample has the labels `common`; a family without samples is left out."""
    lines = []
    for family in families:
        if not family.samples:
            continue
        about = family.about.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [f"# HELP {family.name} {about}", f"# TYPE {family.name} {family.kind}"]
        for one in family.samples:
            inside = ",".join(f'{name}="{escaped(value)}"' for name, value in {**common, **one.labels}.items())
            lines.append(f"{family.name}{one.suffix}{{{inside}}} {_number(one.value)}")
    return "\n".join([*lines, ""])


def escaped(value: str) -> str:
    """Return a value as it stands in a label."""
    # A lone surrogate of a file's name cannot be sent.
    clean = value.encode("utf-8", "replace").decode()
    return clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
