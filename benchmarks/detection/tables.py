"""The tables of docs/detection-study.md, from the results of all runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.detection import shapes
from benchmarks.detection.choosing import CHOOSING, Healthy
from benchmarks.detection.driver import AUTOPILOT, RECORDING, Result
from benchmarks.detection.judging import JUDGING
from benchmarks.detection.peers import PEERS
from benchmarks.detection.rows import FAULT_SEEDS, PEERS_ROUNDS, SEEDS, Results, struck

PAGE = Path(__file__).parents[2] / "docs" / "detection-study.md"
_COMMAND = "python -m benchmarks.detection --write"
# A metric that is not finite, such as that of a network of NaN, counts as this; so does one that is lower.
_RUINED = -20.0
# A plain loop chose nothing, so every seed of it counts.
_ANY_SEEDS = tuple(sorted({*SEEDS, *FAULT_SEEDS}))


def measures(results: list[Result]) -> list[float]:
    return [max(one.measure, _RUINED) if math.isfinite(one.measure) else _RUINED for one in results]


def mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def spread(*groups: list[float]) -> float:
    """Return the pooled standard deviation of groups of at least two values; at least a thousandth."""
    known = [group for group in groups if len(group) > 1]
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in known)
    return max(1e-3, math.sqrt(squares / max(1, sum(len(group) - 1 for group in known))))


def is_within(values: list[float], others: list[float], *more: list[float]) -> bool:
    """Return whether the mean is no worse than two pooled standard deviations below that of the others.

    `more`: other runs of the same training, whose spread counts too.
    """
    return mean(values) >= mean(others) - 2.0 * spread(values, others, *more)


# -- healthy trainings -------------------------------------------------------------------------------------------------


def of_health(results: Results, group: str, trainings: tuple[Healthy, ...]) -> Iterator[str]:
    peers = PEERS if group == "judging" else {}
    yield (
        "| kind | training | skips in 1000 | pins | came down | changed | tried | sent back | autopilot - recording |"
        + "".join(f" {peer} |" for peer in peers)
    )
    yield "|---|---|---|---|---|---|---|---|---|" + "---|" * len(peers)
    for one in trainings:
        if results.of(group, f"{one.kind}: {one.name}", AUTOPILOT, SEEDS):
            yield _health(results, group, one, list(peers))


def _health(results: Results, group: str, one: Healthy, peers: list[str]) -> str:
    name = f"{one.kind}: {one.name}"
    ours = results.of(group, name, AUTOPILOT, SEEDS)
    steps = sum(run.steps for run in ours)
    skips = 1000.0 * sum(run.skips for run in ours) / max(1, steps)
    counts = [sum(getattr(run, field) for run in ours) for field in ("pins", "came_down", "changed", "tried")]
    back = sum(run.backs > run.tried for run in ours)
    cells = [f"{skips:.2f}", *map(str, counts), f"{back} of {len(ours)}"]
    cells += [_difference(results, group, name, how) for how in (AUTOPILOT, *peers)]
    return f"| {one.kind} | {one.name} | " + " | ".join(cells) + " |"


def _difference(results: Results, group: str, name: str, how: str) -> str:
    """Return the difference of the metric from that of plain runs, of the seeds that both ran with."""
    seeds = [seed for seed in SEEDS if all(results.of(group, name, one, (seed,)) for one in (how, RECORDING))]
    if not seeds:
        return ""
    mine, others = (measures(results.of(group, name, one, tuple(seeds))) for one in (how, RECORDING))
    # One seed has no spread.
    mark = "" if len(seeds) < 2 or is_within(mine, others) else " worse"
    return f"{mean(mine) - mean(others):+.3f}{mark}"


def totals(results: Results) -> Iterator[str]:
    """Yield the sums over all healthy trainings."""
    yield "| healthy trainings | runs | halted | sent back | tried both ways | of these, went on | pins |"
    yield "|---|---|---|---|---|---|---|"
    for group, trainings in (("choosing", CHOOSING), ("judging", JUDGING)):
        runs = [run for one in trainings for run in results.of(group, f"{one.kind}: {one.name}", AUTOPILOT, SEEDS)]
        back, tried = sum(run.backs > run.tried for run in runs), sum(run.tried for run in runs)
        went = sum(any("chose went_on" in line for line in run.lines) for run in runs)
        halted, pins = sum(run.halted for run in runs), sum(run.pins for run in runs)
        yield f"| {group} | {len(runs)} | {halted} | {back} | {tried} | {went} | {pins} |"


# -- faults ------------------------------------------------------------------------------------------------------------


def of_faults(results: Results) -> Iterator[str]:
    yield "| fault | training | clean | plain loop | autopilot | steps until it went back | " + " | ".join(PEERS) + " |"
    yield "|---|---|---|---|---|---|" + "---|" * len(PEERS)
    for one in struck():
        name = f"{one.fault.name}, {one.base}"
        clean = measures(results.of("clean", one.base, RECORDING, SEEDS))
        runs = results.of("fault", name, AUTOPILOT, FAULT_SEEDS)
        plain = measures(results.of("fault", name, RECORDING, _ANY_SEEDS))
        if not runs:
            continue
        cells = [_metric(clean), _against(plain, clean), _against(measures(runs), clean), _found(runs)]
        cells += [
            _against(measures(results.of("fault", name, how, FAULT_SEEDS[:PEERS_ROUNDS])), clean) for how in PEERS
        ]
        yield f"| {one.fault.name} | {one.base} | " + " | ".join(cells) + " |"


def _metric(values: list[float]) -> str:
    return f"{mean(values):.3f}" if values else ""


def _against(values: list[float], clean: list[float]) -> str:
    if not values:
        return ""
    shown = "none" if mean(values) <= _RUINED else f"{mean(values):.3f}"
    return shown if is_within(values, clean) else f"**{shown}**"


def _found(runs: list[Result]) -> str:
    found = sorted(run.found for run in runs if run.found >= 0)
    kept = [run.kept for run in runs if run.gave_up and run.kept is not None]
    some = f", {len(found)} of {len(runs)}"
    more = f"; pin kept in {len(kept)}: {mean(kept):.3f}" if kept else ""
    return f"{found[len(found) // 2]} (most {found[-1]}){some}{more}" if found else f"never{more}"


def against_peers(results: Results) -> Iterator[str]:
    """Yield in how many rows of faults the autopilot is better than each peer, no worse, or worse.

    Worse or better is by more than two pooled standard deviations, of the seeds that both ran with and of clean runs.
    """
    yield "| against | faults | better | within the spread | worse |"
    yield "|---|---|---|---|---|"
    both = {how: _pairs(results, how) for how in PEERS}
    for how, pairs in both.items():
        yield f"| {how} | {_counted(list(pairs.values()))} |"
    names = [name for name in both[next(iter(PEERS))] if all(name in pairs for pairs in both.values())]
    best = [max((pairs[name] for pairs in both.values()), key=lambda one: mean(one[1])) for name in names]
    yield f"| the best of them in each row | {_counted(best)} |"


# The metrics of the autopilot, of a peer, and of clean runs of the same training.
Pair = tuple[list[float], list[float], list[float]]


def _pairs(results: Results, how: str) -> dict[str, Pair]:
    """Return the metrics of the autopilot and of a peer, of the same seeds, by fault; and those of clean runs."""
    pairs = {}
    for one in struck():
        name = f"{one.fault.name}, {one.base}"
        seeds = tuple(seed for seed in FAULT_SEEDS if results.of("fault", name, how, (seed,)))
        ours = results.of("fault", name, AUTOPILOT, seeds)
        if seeds and len(ours) == len(seeds):
            clean = measures(results.of("clean", one.base, RECORDING, SEEDS))
            pairs[name] = measures(ours), measures(results.of("fault", name, how, seeds)), clean
    return pairs


def _counted(pairs: list[Pair]) -> str:
    worse = sum(not is_within(ours, theirs, clean) for ours, theirs, clean in pairs)
    better = sum(not is_within(theirs, ours, clean) for ours, theirs, clean in pairs)
    return f"{len(pairs)} | {better} | {len(pairs) - better - worse} | {worse}"


# -- sequences ---------------------------------------------------------------------------------------------------------


def of_shapes(_: Results) -> Iterator[str]:
    yield "| kind | shape | steps | skips in 1000 | pins | came down | left to a comparison |"
    yield "|---|---|---|---|---|---|---|"
    for shape, tally in shapes.rows():
        skips = 1000.0 * tally.skips / tally.steps
        cells = (shape.kind, shape.name, tally.steps, f"{skips:.2f}", tally.pins, tally.came_down, tally.compared)
        yield "| " + " | ".join(map(str, cells)) + " |"


def of_models(_: Results) -> Iterator[str]:
    yield "| loss, from and to | noise | " + " | ".join(shapes.LOSSES) + " |"
    yield "|---|---|" + "---|" * len(shapes.LOSSES)
    for first, last, size in shapes.MODELS:
        cells = [_delay(shapes.language(first, last, size, how, shapes.SEED, 6)) for how in shapes.LOSSES]
        yield f"| {first} to {last} | {size} | " + " | ".join(cells) + " |"


def _delay(tally: shapes.Tally) -> str:
    found = sorted(one for one in tally.delays if one >= 0)
    return f"{len(found)} of {len(tally.delays)}, after {found[len(found) // 2]}" if found else "never"


TABLES: dict[str, Callable[[Results], Iterator[str]]] = {
    "totals": totals,
    "judging": lambda results: of_health(results, "judging", JUDGING),
    "choosing": lambda results: of_health(results, "choosing", CHOOSING),
    "struck": of_faults,
    "peers": against_peers,
    "shapes": of_shapes,
    "models": of_models,
}


def show(results: Results, *, write: bool) -> None:
    """Print the tables; put them between their marks in the page if asked."""
    for name, made in TABLES.items():
        lines = list(made(results))
        print("\n" + "\n".join(lines), flush=True)
        if write:
            _put(name, lines)


def _put(name: str, lines: list[str]) -> None:
    begin, end = f"<!-- {name}: {_COMMAND} -->", f"<!-- end of {name} -->"
    page = PAGE.read_text(encoding="utf-8")
    before, found, rest = page.partition(begin)
    if not found or end not in rest:
        raise SystemExit(f"{PAGE} has no marks for the table {name}")
    PAGE.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{rest.partition(end)[2]}", encoding="utf-8")
