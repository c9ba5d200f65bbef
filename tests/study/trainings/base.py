"""Real small trainings in a plain torch loop, with the detector beside them: once acting, once only recording.

A training is a generator. Before each update it yields what the detector judges (`Seen`) and is sent whether to make
the update. It returns how good the trained model is. Its data and its draws depend on its seed alone, so two runs of it
differ only by the updates that were skipped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from tolariad.core.calc.detection.detector import Detector
from tolariad.core.calc.detection.rules import Action, Finding, Verdict
from tolariad.trainer.tasks.digits import read_digits

# Skips of a kind of batch among its first ones say nothing: the detector cannot know a kind that it has not seen.
FIRST_OF_A_KIND = 3
TESTED = 360


class Seen(NamedTuple):
    """One step before its update. `kind`: of its batch, if the training has several."""

    loss: float
    grad_norm: float
    optimizer: torch.optim.Optimizer
    kind: str = ""

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


Run: TypeAlias = Generator[Seen, bool, float]


@dataclass(frozen=True)
class Training:
    """One configuration. `unit`: what the task declares of a loss that may be negative."""

    group: str
    name: str
    make: Callable[..., Run]
    options: dict[str, Any] = field(default_factory=dict)
    unit: float | None = None

    def begin(self, seed: int) -> Run:
        return self.make(seed, **self.options)


@dataclass(frozen=True)
class Hot:
    """From `step` on every rate is `factor` times what the training sets."""

    step: int
    factor: float


@dataclass
class Outcome:
    """The result of a run."""

    training: Training
    seed: int
    acts: bool
    steps: int = 0
    measure: float = math.nan
    back: list[tuple[int, Finding]] = field(default_factory=list)
    rises: int = 0
    met: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_later: Counter[str] = field(default_factory=Counter)

    @property
    def skips(self) -> int:
        return self.skipped.total()

    @property
    def worst_kind(self) -> float:
        """The largest share of a kind of batch that was skipped, its first three apart."""
        return max((self.skipped_later[kind] / count for kind, count in self.met.items()), default=0.0)


def run(training: Training, seed: int, *, acts: bool, hot: Hot | None = None) -> Outcome:
    """Train to the end; or, with a fault, until the run is told to go back after it."""
    outcome, detector = Outcome(training, seed, acts), Detector(unit=training.unit)
    steps = training.begin(seed)
    seen = next(steps)
    while True:
        outcome.steps += 1
        if hot is not None and outcome.steps >= hot.step:
            _heat(seen.optimizer, hot, outcome.steps)
        verdict = detector.judge(seen.loss, seen.grad_norm, seen.rate)
        made = _record(outcome, seen, verdict) or not acts
        if hot is not None and outcome.back and outcome.back[-1][0] >= hot.step:
            return outcome
        try:
            seen = steps.send(made)
        except StopIteration as ended:
            outcome.measure = ended.value
            return outcome


def _heat(optimizer: torch.optim.Optimizer, hot: Hot, step: int) -> None:
    if step == hot.step:
        for group in optimizer.param_groups:
            group["lr"] *= hot.factor


def _record(outcome: Outcome, seen: Seen, verdict: Verdict | None) -> bool:
    """Count what was found; whether the update is made."""
    outcome.met[seen.kind] += 1
    if verdict is None:
        return True
    match verdict.action:
        case Action.SKIP:
            outcome.skipped[seen.kind] += 1
            outcome.skipped_later[seen.kind] += outcome.met[seen.kind] > FIRST_OF_A_KIND
            return False
        case Action.ROLLBACK | Action.EMERGENCY:
            outcome.back.append((outcome.steps, verdict.finding))
        case Action.RECORD:
            outcome.rises += verdict.finding is Finding.RISE
    return True


# -- what trainings are made of ----------------------------------------------------------------------------------------


def stepped(
    loss: torch.Tensor, optimizer: torch.optim.Optimizer, kind: str = "", clip: float | None = None
) -> Iterator[Any]:
    """Backward, ask, update: `yield from` it. The norm is the one before clipping."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    norm = float(nn.utils.clip_grad_norm_(parameters, math.inf if clip is None else clip, foreach=True))
    if (yield Seen(loss.item(), norm, optimizer, kind)):
        optimizer.step()


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with an activation between each two."""
    layers: list[nn.Module] = []
    for fed, width in pairwise(widths):
        layers += [nn.Linear(fed, width), act()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    last = next(number for number in range(len(layers) - 1, -1, -1) if isinstance(layers[number], nn.Linear))
    return nn.Sequential(*layers[: last + 1])


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, images and labels to test with."""
    images, labels = read_digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1797))
    images, labels = images[order], labels[order]
    return images[:-TESTED], labels[:-TESTED], images[-TESTED:], labels[-TESTED:]


def draw(count: int, size: int) -> torch.Tensor:
    """So many indices below `size`, with repetition."""
    return torch.randint(size, (count,))


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    found = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return float(found)
