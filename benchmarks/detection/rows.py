"""The runs of the study, and their results in a file: a run that was interrupted goes on where it was.

A result is used again only if neither the code of the trainings nor, for the autopilot, that of the detector changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.detection.choosing import CHOOSING, Healthy
from benchmarks.detection.driver import AUTOPILOT, RECORDING, Make, Result, run
from benchmarks.detection.faults import FAULTS, Fault
from benchmarks.detection.judging import JUDGING
from benchmarks.detection.language import Attending, Language, Recurrent
from benchmarks.detection.peers import PEERS
from benchmarks.detection.training import Convolved, Digits, Regression

# Of healthy trainings and clean runs; of runs with a fault. Faults with seeds 1 to 4 chose constants.
SEEDS = (1, 2, 3, 4, 5)
FAULT_SEEDS = (5, 6, 7, 8, 9)
# The peers run with the first of both.
PEERS_ROUNDS = 3
_HERE = Path(__file__).parent
_CORE = Path(__file__).parents[2] / "tolariad" / "core" / "calc" / "detection"
_TRAININGS = ("training", "language", "choosing", "judging", "judging_more", "faults", "driver")
# The training that a fault strikes: the kinds of networks in turn, and a language model for each second fault.
_BASES: tuple[tuple[str, Make], ...] = (
    ("perceptron", Digits),
    ("language, window", Language),
    ("convolution", Convolved),
    ("language, GRU", lambda seed: Language(seed, kind=Recurrent, width=24, length=12)),
    ("regression", Regression),
    ("language, attention", lambda seed: Language(seed, kind=Attending, width=32)),
)
_NEEDS = {
    "loss scale x1000 wrong for 30 steps": 2,
    "loss scale x1000 wrong for 30 steps, Adam": 3,
    "noise on the weights each step, 200 steps": 0,
    "noise on the weights each step, 200 steps, convolution": 2,
    "norm layers spoiled": 2,
    "inputs times 50, 30 batches": 0,
    "Adam's counts lost": 1,
}


class Struck(NamedTuple):
    """A fault and the training that it strikes."""

    fault: Fault
    base: str
    make: Make


def struck() -> list[Struck]:
    """Return every fault with its training."""
    found = []
    for number, fault in enumerate(FAULTS):
        name, make = _BASES[_NEEDS.get(fault.name, number % len(_BASES))]
        found.append(Struck(fault, name, make))
    return found


class Row(NamedTuple):
    """One run. `key`: its name in the file of results."""

    key: str
    make: Make
    how: str
    seed: int
    fault: Fault | None = None


def digest(how: str) -> str:
    """Return a digest of the code that decides how such a run ends."""
    files = [_HERE / f"{name}.py" for name in _TRAININGS]
    if how == AUTOPILOT:
        files += [_HERE / "insured.py", *sorted(_CORE.glob("*.py"))]
    elif how in PEERS:
        files.append(_HERE / "peers.py")
    return hashlib.blake2b(b"".join(one.read_bytes() for one in files), digest_size=6).hexdigest()


def row(group: str, name: str, make: Make, how: str, seed: int, fault: Fault | None = None) -> Row:
    return Row(f"{group}/{name}/{how}/{seed}", make, how, seed, fault)


def healthy_rows(group: str, trainings: tuple[Healthy, ...], how: str, seed: int) -> Iterator[Row]:
    for one in trainings:
        yield row(group, f"{one.kind}: {one.name}", one.make, how, seed)


def fault_rows(how: str, seed: int) -> Iterator[Row]:
    for one in struck():
        yield row("fault", f"{one.fault.name}, {one.base}", one.make, how, seed, one.fault)


def all_rows(results: Results) -> Iterator[Row]:
    """Yield every run, one seed of each after the other: an interrupted study has some of everything.

    A healthy run in which the autopilot did nothing is not repeated: it has made every update.
    """
    for number, (seed, fault_seed) in enumerate(zip(SEEDS, FAULT_SEEDS, strict=True)):
        yield from fault_rows(AUTOPILOT, fault_seed)
        for name, make in _BASES:
            yield row("clean", name, make, RECORDING, seed)
        yield from healthy_rows("judging", JUDGING, AUTOPILOT, seed)
        yield from fault_rows(RECORDING, fault_seed)
        if number < PEERS_ROUNDS:
            for how in PEERS:
                yield from fault_rows(how, fault_seed)
        yield from healthy_rows("choosing", CHOOSING, AUTOPILOT, seed)
        yield from _acted(results, "judging", JUDGING, seed)
        if number < PEERS_ROUNDS:
            for how in PEERS:
                yield from healthy_rows("judging", JUDGING, how, seed)
        yield from _acted(results, "choosing", CHOOSING, seed)


def _acted(results: Results, group: str, trainings: tuple[Healthy, ...], seed: int) -> Iterator[Row]:
    """Yield the plain runs of the trainings in which the autopilot did something."""
    for one in healthy_rows(group, trainings, RECORDING, seed):
        acting = results.acting(one)
        if acting is not None and (acting.skips or acting.backs):
            yield one


class Results:
    """The results in a file of JSON lines; the newest of a run counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Result] = {}
        self._digests: dict[str, str] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                key, code, result = json.loads(line)
                if code == self._digest(key.split("/")[2]):
                    self._known[key] = msgspec.convert(result, Result)

    def _digest(self, how: str) -> str:
        return self._digests.setdefault(how, digest(how))

    def find(self, one: Row) -> Result | None:
        return self._known.get(one.key)

    def acting(self, one: Row) -> Result | None:
        """Return the result of the same training under the autopilot."""
        return self._known.get(one.key.replace(f"/{RECORDING}/", f"/{AUTOPILOT}/"))

    def _unacted(self, key: str) -> str:
        """Return the key of the run under the autopilot, if it did nothing: then it is the plain run."""
        other = key.replace(f"/{RECORDING}/", f"/{AUTOPILOT}/")
        found = self._known.get(other)
        return other if found is not None and not found.skips and not found.backs else ""

    def of(self, group: str, name: str, how: str, seeds: tuple[int, ...]) -> list[Result]:
        """Return the results of one training, by seed; those that are missing are left out."""
        keys = [f"{group}/{name}/{how}/{seed}" for seed in seeds]
        if how == RECORDING and group in ("judging", "choosing"):
            keys = [key if key in self._known else self._unacted(key) for key in keys]
        return [self._known[key] for key in keys if key in self._known]

    def compute(self, one: Row) -> Result:
        """Return the result of a run, and keep it."""
        if (known := self.find(one)) is not None:
            return known
        result = run(one.make, one.how, one.seed, one.fault)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([one.key, self._digest(one.how), msgspec.to_builtins(result)]) + "\n")
        self._known[one.key] = result
        return result


def compute(results: Results, rows: Iterator[Row], minutes: float) -> int:
    """Compute what is missing for so many minutes; return how many runs are still missing."""
    until, left = time.monotonic() + 60.0 * minutes, 0
    for one in rows:
        if results.find(one) is not None:
            continue
        if time.monotonic() > until:
            left += 1
            continue
        found = results.compute(one)
        told = " | ".join((f"{found.measure:.4g} in {found.steps}, acts {found.acts + found.skips}", *found.lines))
        print(f"{one.key}: {told}", flush=True)
    return left
