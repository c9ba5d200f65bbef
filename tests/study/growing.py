"""Runs of a host that grows, of the host alone, and of one that has the grown size from the start: on digits.

The host is the narrow network of examples/growing. Its seeds are grown by the default policy. The run of the final size
has the same modules from the first step on, as ordinary parts of the model. The policy looks at the validation; the
accuracy is that on other digits, which no run has seen. Data, network and order of the data are drawn from the seed.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests import order_events
from tests.house.tree import ROOT
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.seeds import SeedSlot, find_blueprint
from tolariad.trainer.tasks.digits import read_digits
from tolariad.trainer.tasks.task import find_task

HELD_OUT = 360
BATCH = 64
EXAMPLE = ROOT / "examples" / "growing"
NARROW, WIDENING = f"{EXAMPLE / 'task.py'}:Narrow", f"{EXAMPLE / 'blueprint.py'}:Widening"
BUILT_IN = ("bottleneck", "conv", "low_rank")
# Settings of seeds. By default both a judged seed and a fossil are frozen, at a tenth of the host's rate.
DEFAULT = "with seeds: the default"
AT_HOSTS_RATE = {"lr": 3e-3}
BOTH_LEARN = {"evaluate": "train", "fossil": "train"}
SETTINGS: dict[str, dict[str, object]] = {
    DEFAULT: {},
    "fossils train": {"fossil": "train"},
    "judged seeds train": {"evaluate": "train"},
    "both train": BOTH_LEARN,
    "at the host's rate": AT_HOSTS_RATE,
    "at the host's rate, both train": {**AT_HOSTS_RATE, **BOTH_LEARN},
}


@dataclass(frozen=True)
class Grown:
    """The result of a run. `seconds`: processor time. `seeds`: slot and blueprint of each in the model at the end."""

    accuracy: float
    loss: float
    parameters: int
    seconds: float
    germinated: int
    seeds: tuple[tuple[str, str], ...]


def network(seed: int) -> nn.Sequential:
    """Return the host: two narrow convolutions with a slot after each."""
    task = find_task(NARROW).task
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        found: nn.Sequential = task.model(None)
    return found


def with_modules(model: nn.Sequential, seeds: tuple[tuple[str, str], ...], seed: int) -> nn.Sequential:
    """Return the host with these modules in place of its slots, and nothing in the others."""
    shapes = {"early": (1, 4, 4, 4), "late": (1, 4, 2, 2)}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built = {slot: find_blueprint(name).build(torch.zeros(shapes[slot])) for slot, name in seeds}
    return nn.Sequential(*(built.get(one.name, nn.Identity()) if isinstance(one, SeedSlot) else one for one in model))


def parts(seed: int) -> list[TensorDataset]:
    """Return data to train, to validate and to test with, drawn from all 1 797 digits."""
    images, labels = read_digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    split = order[2 * HELD_OUT :], order[:HELD_OUT], order[HELD_OUT : 2 * HELD_OUT]
    return [TensorDataset(images[part], labels[part]) for part in split]


def train(
    run_dir: Path,
    seed: int,
    model: nn.Sequential,
    *,
    epochs: int,
    seeds: dict[str, object] | None = None,
) -> Grown:
    """Train the model; with settings of seeds the default policy may grow some."""
    trained, validated, tested = parts(seed)
    config = {
        "rng_seed": seed,
        "torch_threads": 1,
        "batch_size": BATCH,
        "learning_rate": {"base_lr": 3e-3, "policy": "constant", "warmup_epochs": 1},
        "strategy": "none" if seeds is None else "default",
        "seeds": {} if seeds is None else {"blueprints": [WIDENING], **seeds},
        "checkpoint_interval_epochs": 20,
        "journal": {"sync": "batch"},
        # A breaker that another program's load opens would stop the growth.
        "budgets": {"act": False},
    }
    began = time.process_time()
    result = Tolaria({"tolaria": config}, run_dir=run_dir).train(
        model, DataLoader(trained, batch_size=BATCH, shuffle=True), DataLoader(validated, batch_size=HELD_OUT), epochs
    )
    seconds = time.process_time() - began
    assert result.phase == "completed", result
    moves = of(events_of(run_dir), order_events.acted(m.MoveSeed))
    images, labels = tested.tensors
    model.eval()
    with torch.no_grad():
        logits = model(images)
    planted = {one.order.slot: one.order.blueprint for one in moves if one.order.stage is Stage.GERMINATED}
    slots = [one.name for one in model if isinstance(one, SeedSlot) and one.seed is not None]
    return Grown(
        accuracy=(logits.argmax(1) == labels).float().mean().item(),
        loss=nn.functional.cross_entropy(logits, labels).item(),
        parameters=sum(one.numel() for one in model.parameters()),
        seconds=seconds,
        germinated=sum(one.order.stage is Stage.GERMINATED for one in moves),
        seeds=tuple((slot, planted[slot]) for slot in slots),
    )


def compared(folder: Path, seed: int, epochs: int) -> dict[str, Grown]:
    """Return the runs of one seed, by name."""
    found = {"host alone": train(folder / f"host-{seed}", seed, network(seed), epochs=epochs)}
    for number, (name, seeds) in enumerate(SETTINGS.items()):
        found[name] = train(folder / f"grown-{seed}-{number}", seed, network(seed), epochs=epochs, seeds=seeds)
    whole = with_modules(network(seed), found[DEFAULT].seeds, seed)
    found["final size from the start"] = train(folder / f"final-{seed}", seed, whole, epochs=epochs)
    return found


def row(name: str, runs: list[Grown]) -> str:
    """Return a row of the table: means, and the standard deviation of the accuracy."""
    accuracies = [100 * one.accuracy for one in runs]
    spread = statistics.stdev(accuracies) if len(runs) > 1 else 0.0
    sizes = sorted({one.parameters for one in runs})
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    means = [statistics.fmean(found) for found in ([one.loss for one in runs], [one.seconds for one in runs])]
    stayed = f"{sum(len(one.seeds) for one in runs)} of {sum(one.germinated for one in runs)}"
    return (
        f"| {name} | {statistics.fmean(accuracies):.2f} % ± {spread:.2f} | {means[0]:.3f} | {size} "
        f"| {means[1]:.1f} s | {stayed} |"
    )


HEAD = """
| run | accuracy | loss | parameters | processor time | seeds at the end |
|---|---|---|---|---|---|"""
