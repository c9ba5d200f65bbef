"""All trainings, and the tables that docs/detection-study.md shows of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.house.tree import ROOT
from tests.study.trainings.base import Hot, Outcome, Training, run
from tests.study.trainings.catalogue import FACTORS, HARD, HEALTHY, SEEDS, STRUCK, STRUCK_AT

PAGE = ROOT / "docs" / "detection-study.md"
_BEGIN, _END = "<!-- trainings: python -m tests.study.trainings -->", "<!-- end of trainings -->"


@dataclass(frozen=True)
class Pair:
    """The same training with the detector acting and with it only recording."""

    acting: Outcome
    recording: Outcome

    @property
    def gained(self) -> float:
        """How much better the model is because the detector acted."""
        return self.acting.measure - self.recording.measure


@dataclass(frozen=True)
class Struck:
    """A run with a fault. `after`: steps until it was to go back; None if it never was."""

    factor: float
    training: Training
    after: int | None


@dataclass
class Study:
    """Everything that was measured."""

    healthy: list[Pair] = field(default_factory=list)
    hard: list[Pair] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)


def pair(training: Training, seed: int) -> Pair:
    """Both runs. One in which nothing was skipped has made every update: recording only, it is the same run."""
    acting = run(training, seed, acts=True)
    return Pair(acting, run(training, seed, acts=False) if acting.skips else acting)


def strike(training: Training, seed: int, factor: float) -> Struck:
    """Multiply the rate in the middle and wait for the order to go back."""
    outcome = run(training, seed, acts=True, hot=Hot(STRUCK_AT, factor))
    after = [step - STRUCK_AT for step, _ in outcome.back if step >= STRUCK_AT]
    return Struck(factor, training, after[0] if after else None)


def measure(say: Callable[[str], None]) -> Study:
    """Run everything: some ten minutes of one core."""
    torch.set_num_threads(1)
    study = Study()
    for trainings, found in ((HEALTHY, study.healthy), (HARD, study.hard)):
        for training in trainings:
            for seed in SEEDS:
                one = pair(training, seed)
                found.append(one)
                acting = one.acting
                say(
                    f"{training.group}: {training.name}, seed {seed}: rollbacks {acting.back}, "
                    f"skips {dict(acting.skipped)}, {acting.measure:.3f} ({one.gained:+.3f})"
                )
    for training in STRUCK:
        for seed in SEEDS:
            for factor in FACTORS:
                struck = strike(training, seed, factor)
                study.struck.append(struck)
                say(f"x{factor:g} in {training.name}, seed {seed}: back after {struck.after} steps")
    return study


def tables(study: Study) -> str:
    """Markdown: the healthy, those that cannot be told from faults, and the faults."""
    lines = [
        (
            "| trainings | runs | steps | rolled back | rises recorded "
            "| skips in 1000 steps | most of a kind skipped | better by |"
        )
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += _rows(study.healthy)
    lines.append(_row("all of these", study.healthy))
    lines += _rows(study.hard)
    lines += ["", "| rate | runs | rolled back | steps until then, median (most) | not |", "|---|---|---|---|---|"]
    for factor in FACTORS:
        of = [one for one in study.struck if one.factor == factor]
        found = sorted(one.after for one in of if one.after is not None)
        missed = sorted({one.training.make.__name__ for one in of if one.after is None})
        took = f"{statistics.median(found):g} ({found[-1]})" if found else ""
        lines.append(f"| x{factor:g} | {len(of)} | {len(found)} | {took} | {', '.join(missed)} |")
    return "\n".join(lines)


def _rows(pairs: Iterable[Pair]) -> Iterable[str]:
    groups: dict[str, list[Pair]] = {}
    for one in pairs:
        groups.setdefault(one.acting.training.group, []).append(one)
    return (_row(group, members) for group, members in groups.items())


def _row(name: str, pairs: list[Pair]) -> str:
    acting = [one.acting for one in pairs]
    steps, skips = sum(one.steps for one in acting), sum(one.skips for one in acting)
    worst = 100.0 * max(one.worst_kind for one in acting)
    back, rises = sum(bool(one.back) for one in acting), sum(one.rises for one in acting)
    gained = statistics.fmean(one.gained for one in pairs)
    better = f"{gained:+.3f}" if name != "all of these" else ""
    skipped = f"{1000 * skips / steps:.2f} | {worst:.1f} %"
    return f"| {name} | {len(pairs)} | {steps} | {back} | {rises} | {skipped} | {better} |"


def write(study: Study, page: Path = PAGE) -> None:
    """Put the tables into the page, between their marks."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    page.write_text(f"{before}{_BEGIN}\n{tables(study)}\n{_END}{after}", encoding="utf-8")
