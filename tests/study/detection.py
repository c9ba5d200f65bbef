"""The detector against healthy runs and against faults: both tables of docs/detection-study.md.

`python -m tests.study.detection` prints the tables; `--write` puts them into docs/detection-study.md, `--seed N` draws
others. Every number follows from the seed. The long form takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.random import Generator

from tests.study import judging, shapes
from tests.study.courses import (
    Series,
    Shape,
    correlated,
    decay,
    minority,
    normal,
    positive,
    student,
    wave,
)
from tolariad.core.calc.detection.detector import Detector
from tolariad.core.calc.detection.rules import Action, Finding, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "detection-study.md"
SEED = 13
# Runs and their steps: many beginnings, and a few long ones; a million steps of each shape.
LONG = ((150, 4000), (20, 20_000))
UNIT = 1.0
GOES_BACK = (Action.ROLLBACK, Action.EMERGENCY)


@dataclass
class Tally:
    """The findings in runs of one shape."""

    steps: int = 0
    runs: int = 0
    gone_back: int = 0
    skips: int = 0
    rises: int = 0

    def add(self, steps: int, found: dict[int, Verdict]) -> None:
        actions = [one.action for one in found.values()]
        self.steps, self.runs = self.steps + steps, self.runs + 1
        self.gone_back += any(one in GOES_BACK for one in actions)
        self.skips += sum(one is Action.SKIP for one in actions)
        self.rises += sum(one.finding is Finding.RISE for one in found.values())

    @property
    def skips_a_thousand(self) -> float:
        return 1000.0 * self.skips / self.steps


def generator(*of: int | str) -> Generator:
    """A generator of its own for everything that has a name."""
    return np.random.default_rng([zlib.crc32(one.encode()) if isinstance(one, str) else one for one in of])


def verdicts(series: Series, run: int, unit: float | None = UNIT) -> dict[int, Verdict]:
    """The findings in one run, by step."""
    judge, rates = Detector(unit=unit).judge, series.rate.tolist()
    losses, norms = series.loss[run].tolist(), series.norm[run].tolist()
    return {t: one for t in range(len(losses)) if (one := judge(losses[t], norms[t], rates[t])) is not None}


def healthy(shape: Shape, seed: int, plan: Iterable[tuple[int, int]] = LONG) -> Tally:
    """A healthy shape: whatever is found is a false alarm."""
    tally = Tally()
    for runs, steps in plan:
        series = shape.draw(generator(seed, shape.kind, shape.name, steps), runs, steps)
        for run in range(runs):
            tally.add(steps, verdicts(series, run))
    return tally


def compositions(seed: int, count: int, steps: int = 4000) -> tuple[Tally, int]:
    """Random compositions; and in how many more than one step in a thousand was skipped."""
    tally, many = Tally(), 0
    for number in range(count):
        series, unit = judging.composed(generator(seed, "composed", number), steps)
        found = verdicts(series, 0, unit)
        tally.add(steps, found)
        many += sum(one.action is Action.SKIP for one in found.values()) > steps / 1000
    return tally, many


# -- kinds of batches --------------------------------------------------------------------------------------------------

KINDS = [(share, times) for share in (0.005, 0.01, 0.02, 0.05, 0.1) for times in (3.0, 5.0, 10.0)]


def kind_skipped(share: float, times: float, seed: int, runs: int, steps: int) -> float:
    """Of a second kind of batches, the largest part in any run that is skipped after its first three."""
    rng = generator(seed, "kind", int(share * 1e4), int(times))
    log_loss = decay(runs, steps) + normal(rng, runs, steps, 0.05)
    others = rng.uniform(0.0, 1.0, (runs, steps)) < share
    series = positive(rng, log_loss + np.log(times) * others)
    worst = 0.0
    for run in range(runs):
        found = verdicts(series, run)
        of_kind = np.flatnonzero(others[run])[3:]
        skipped = sum(t in found and found[t].action is Action.SKIP for t in of_kind.tolist())
        worst = max(worst, skipped / max(1, len(of_kind)))
    return worst


# -- faults ------------------------------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "x20": lambda k: np.full_like(k, 20.0),
    "x10": lambda k: np.full_like(k, 10.0),
    "x5": lambda k: np.full_like(k, 5.0),
    "x3": lambda k: np.full_like(k, 3.0),
    "+0.5 % a step": lambda k: 1.005**k,
    "+0.2 % a step": lambda k: 1.002**k,
    "once x10": lambda k: np.where(k == 0, 10.0, 1.0),
    "not finite": lambda k: np.where(k == 0, math.nan, 1.0),
}

Draw = Callable[[Generator, int, int], Series]


def _in(course: Callable[[Generator, int, int], np.ndarray]) -> Draw:
    """Norms that feel nothing of the fault."""
    return lambda rng, n, t: positive(rng, course(rng, n, t), share=0.0)


FAULTY: dict[str, Draw] = {
    "decay, noise 0.05": _in(lambda rng, n, t: decay(n, t) + normal(rng, n, t, 0.05)),
    "decay, 0.05 t(4)": _in(lambda rng, n, t: decay(n, t) + student(rng, n, t, 0.05)),
    "level 0.02, noise 0.3": _in(lambda rng, n, t: np.log(0.02) + normal(rng, n, t, 0.3)),
    "AR(1) 0.9, 0.2": _in(lambda rng, n, t: decay(n, t) + correlated(rng, n, t, 0.2, 0.9)),
    "noise 0.5": _in(lambda rng, n, t: decay(n, t) + normal(rng, n, t, 0.5)),
    "noise 1 (batch of one)": _in(lambda rng, n, t: decay(n, t) + normal(rng, n, t, 1.0)),
    "5 % of batches x5": _in(lambda rng, n, t: decay(n, t) + minority(rng, n, t, 0.05, 5.0) + normal(rng, n, t, 0.05)),
    "swings of x3.2": _in(lambda rng, n, t: wave(rng, n, t, 3.2, 300.0) + normal(rng, n, t, 0.05)),
}
# The runs that a fault is promised to be found in: those without noise that hides it.
QUIET = ("decay, noise 0.05", "decay, 0.05 t(4)", "level 0.02, noise 0.3")
AFTER, UP_TO = 1500, 1600


@dataclass
class Delays:
    """Steps of a fault until anything was found, and until it was gone back for; by run, infinite if never."""

    found: list[float] = field(default_factory=list)
    gone_back: list[float] = field(default_factory=list)


def delays(name: str, fault: str, seed: int, runs: int, begin: int) -> Delays:
    """A fault that begins within the 300 steps after `begin`."""
    rng = generator(seed, "fault", name, fault, begin)
    steps = begin + 300 + UP_TO
    series = FAULTY[name](rng, runs, steps)
    measured = Delays()
    for run in range(runs):
        at = int(rng.integers(begin, begin + 300))
        since = np.minimum(np.arange(steps - at, dtype=float), 1400.0)
        series.loss[run, at:] *= FAULTS[fault](since)
        found = {t - at: one for t, one in verdicts(series, run).items() if t >= at}
        measured.found.append(min(found, default=math.inf))
        measured.gone_back.append(min((t for t, one in found.items() if one.action in GOES_BACK), default=math.inf))
    return measured


def from_the_start(growth: float, seed: int, runs: int) -> list[float]:
    """At how many times the first level a run is gone back for that diverges from one of its first twenty steps on."""
    rng = generator(seed, "start", int(growth * 1000))
    reached = []
    for _ in range(runs):
        begin = int(rng.integers(0, 20))
        rises = growth ** np.maximum(0.0, np.arange(600) - begin)
        series = positive(rng, (np.log(2.3) + rng.normal(0.0, 0.05, 600) + np.log(rises))[None, :], share=0.0)
        found = verdicts(series, 0)
        back = min((t for t, one in found.items() if one.action in GOES_BACK), default=599)
        reached.append(float(series.loss[0, back]) / 2.3)
    return reached


# -- the page ----------------------------------------------------------------------------------------------------------


def table_of_health(seed: int) -> Iterator[str]:
    yield "| kind | shape | judged by | steps | runs with a rollback | skips per 1000 | rises recorded per 100 000 |"
    yield "|---|---|---|---|---|---|---|"
    for shape in shapes.SHAPES:
        yield row_of(shape, "chosen by", seed)
    for shape in judging.SHAPES:
        yield row_of(shape, "held out", seed)
    yield row_of_compositions(seed, 3000)


def row_of(shape: Shape, judged: str, seed: int) -> str:
    one = healthy(shape, seed)
    return (
        f"| {shape.kind} | {shape.name} | {judged} | {one.steps:,} | {one.gone_back} of {one.runs} | "
        f"{one.skips_a_thousand:.2f} | {1e5 * one.rises / one.steps:.1f} |"
    )


def row_of_compositions(seed: int, count: int) -> str:
    one, many = compositions(seed, count)
    return (
        f"| random compositions | {count:,} drawn | held out | {one.steps:,} | {one.gone_back} of {count} | "
        f"{one.skips_a_thousand:.2f} ({many} runs above 1) | {1e5 * one.rises / one.steps:.1f} |"
    )


def table_of_faults(seed: int, runs: int = 30) -> Iterator[str]:
    yield "| run | " + " | ".join(FAULTS) + " |"
    yield "|---|" + "---|" * len(FAULTS)
    for begin in (1200, 3000):
        for name in FAULTY:
            cells = [cell(fault, delays(name, fault, seed, runs, begin)) for fault in FAULTS]
            yield f"| {name}, from step {begin} | " + " | ".join(cells) + " |"


def cell(fault: str, measured: Delays) -> str:
    """Median and most; of a drift, how many times the level it had reached."""
    runs = len(measured.found)
    if fault in {"once x10", "not finite"}:
        return f"{sum(one == 0 for one in measured.found)} of {runs} at once"
    back = sorted(one for one in measured.gone_back if one < math.inf)
    if not back:
        said = sorted(measured.found)
        return f"reported after {said[runs // 2]:.0f}" if said[runs // 2] < math.inf else "not found"
    middle, most = back[len(back) // 2], back[-1]
    some = "" if len(back) == runs else f", {len(back)} of {runs}"
    if fault.startswith("+"):
        growth = 1.0 + float(fault[1:4]) / 100.0
        return f"x{growth**middle:.1f} (x{growth**most:.1f}){some}"
    return f"{middle:.0f} ({most:.0f}){some}"


def table_of_starts(seed: int, runs: int = 200) -> Iterator[str]:
    yield "| growth a step from the start | rolled back at, median | most |"
    yield "|---|---|---|"
    for growth in (1.02, 1.05, 1.1, 1.2, 1.3):
        reached = sorted(from_the_start(growth, seed, runs))
        yield f"| {100 * (growth - 1):.0f} % | x{reached[runs // 2]:.0f} | x{reached[-1]:.0f} |"


def table_of_kinds(seed: int, runs: int = 8, steps: int = 20_000) -> Iterator[str]:
    yield "| share of the batches | x3 | x5 | x10 |"
    yield "|---|---|---|---|"
    for share in sorted({one for one, _ in KINDS}):
        worst = [kind_skipped(share, times, seed, runs, steps) for one, times in KINDS if one == share]
        yield f"| {100 * share:g} % | " + " | ".join(f"{100 * one:.1f} %" for one in worst) + " |"


def table_of_swings(seed: int, runs: int = 40) -> Iterator[str]:
    yield "| form, peak to trough | " + " | ".join(f"period {period}" for period in (40, 120, 400, 1000, 3000)) + " |"
    yield "|---|---|---|---|---|---|"
    for form in ("sine", "saw", "teeth", "square", "pulse"):
        for ratio in (3.2, 4.8, 9.0):
            cells = []
            for period in (40, 120, 400, 1000, 3000):
                rng = generator(seed, "swing", form, int(ratio * 10), period)
                series = positive(rng, wave(rng, runs, 5000, ratio, period, form) + normal(rng, runs, 5000, 0.05))
                back = [
                    run for run in range(runs) if any(v.action in GOES_BACK for v in verdicts(series, run).values())
                ]
                cells.append(str(len(back)))
            yield f"| {form}, x{ratio:g} | " + " | ".join(cells) + " |"


TABLES: dict[str, Callable[[int], Iterator[str]]] = {
    "healthy": table_of_health,
    "kinds": table_of_kinds,
    "faults": table_of_faults,
    "starts": table_of_starts,
    "swings": table_of_swings,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/detection-study.md")
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=f"of {', '.join(TABLES)}")
    given = parser.parse_args()
    for name in given.tables:
        print(f"\n{name}, seed {given.seed}", flush=True)
        lines = []
        for line in TABLES[name](given.seed):
            print(line, flush=True)
            lines.append(line)
        if given.write:
            write(name, given.seed, lines)


def write(name: str, seed: int, lines: list[str]) -> None:
    """Replace what stands between a table's two marks."""
    begin, end = f"<!-- {name}: python -m tests.study.detection --write", f"<!-- end of {name} -->"
    page = PAGE.read_text()
    head, _, rest = page.partition(begin)
    if end not in rest:
        raise SystemExit(f"{PAGE} has no marks for the table `{name}`")
    PAGE.write_text(f"{head}{begin}, seed {seed} -->\n" + "\n".join(lines) + f"\n{end}" + rest.partition(end)[2])


if __name__ == "__main__":
    main()
