"""Models, batches and short trainings: by tolariad's own step in one process, by exact sums, and by plain DDP."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.bare_setup import setup_of
from tolariad.trainer.optim.owners import Owner
from tolariad.trainer.ranks.exact import ExactSum, block
from tolariad.trainer.ranks.exact.draws import seed_leaf
from tolariad.trainer.step.gradients import drop_gradients, forward_backward, update

SEED = 11
CLASSES = 10


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, 40), nn.LayerNorm(40))
        self.head = nn.Linear(40, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Convolutions(nn.Module):
    def __init__(self, norm: str = "group") -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        norms = {
            "group": lambda: nn.GroupNorm(4, 16),
            "batch": lambda: nn.BatchNorm2d(16),
            "average": lambda: nn.BatchNorm2d(16, momentum=None),
            "instance": lambda: nn.InstanceNorm2d(16, affine=True, track_running_stats=True),
        }
        self.norm, self.drop, self.head = norms[norm](), nn.Dropout(0.2), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.norm(self.second(torch.relu(self.first(x)))))
        return self.head(self.drop(found.mean((2, 3))))


class Transformer(nn.Module):
    """With the embedding and the head tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, CLASSES, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(x)).mean(1))


class Experts(nn.Module):
    """Each batch uses one expert of three, by its first number; nobody uses the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(24, CLASSES) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts[int(x.flatten()[0].abs() * 1000) % 3](x)


MODELS = {
    "mlp": Perceptron,
    "cnn": Convolutions,
    "batch": lambda: Convolutions("batch"),
    "average": lambda: Convolutions("average"),
    "instance": lambda: Convolutions("instance"),
    "transformer": Transformer,
    "experts": Experts,
}


@dataclass(frozen=True)
class Case:
    """A training. `ddp`: arguments of DDP, or None for a model without it; `last`: leaves of every third step."""

    model: str = "mlp"
    leaves: int = 4
    steps: int = 4
    clip: float | None = 0.5
    bf16: bool = False
    dtype: torch.dtype = torch.float32
    optimizer: dict[str, Any] = field(default_factory=dict)
    ddp: dict[str, Any] | None = None
    backwards: int = 1
    last: int | None = None
    device: str = "cpu"

    def leaves_of(self, step: int) -> int:
        """Return how many leaves a step has: an epoch of three steps ends with a short one."""
        return self.leaves if step % 3 or self.last is None else self.last

    def built(self) -> nn.Module:
        torch.manual_seed(SEED)
        return MODELS[self.model]().to(self.device, self.dtype)

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=3e-3, **self.optimizer)

    def batch(self, step: int, leaf: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return input and classes of one leaf, the same in every process."""
        drawn = torch.Generator().manual_seed(1000 * step + leaf)
        y = torch.randint(0, CLASSES, (6,), generator=drawn)
        if self.model == "transformer":
            return torch.randint(0, CLASSES, (6, 5), generator=drawn), y
        shape = (6, 24) if self.model in ("mlp", "experts") else (6, 3, 8, 8)
        return torch.randn(shape, generator=drawn).to(self.dtype), y

    def forward(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if self.bf16 else nullcontext()

    def loss(self, model: nn.Module, step: int, leaf: int) -> torch.Tensor:
        x, y = (one.to(self.device) for one in self.batch(step, leaf))
        with self.forward():
            found = model(x)
        return functional.cross_entropy(found.to(torch.float32 if self.bf16 else self.dtype), y)

    def clipped(self, model: nn.Module) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(model.parameters(), self.clip)


class Training:
    """A model, its optimizer and the losses of its steps."""

    def __init__(self, case: Case, path: Path | None = None) -> None:
        """`path`: where an earlier training saved itself."""
        self.case, self.losses, self.step = case, [], 0
        self.model = case.built()
        self.optimizer = case.optimizer_of(self.model)
        if path is not None and path.exists():
            held = torch.load(path, weights_only=True)
            self.model.load_state_dict(held["model"])
            self.optimizer.load_state_dict(held["optimizer"])
            self.losses, self.step = held["losses"], held["step"]

    def save(self, path: Path) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "losses": self.losses, "step": self.step}, path)

    def update(self, loss: float) -> None:
        """Make the update from the gradients as they are."""
        if self.case.clip is not None:
            loss += 0.0 * float(self.case.clipped(self.model))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss)
        self.step += 1

    def hashes(self) -> dict[str, str]:
        """Return a SHA-256 each of the model's state, the optimizer's and the losses."""
        held = self.optimizer.state_dict()["state"]
        moments = [one[key] for _, one in sorted(held.items()) for key in sorted(one)]
        return {
            "model": hashed(self.model.state_dict().values()),
            "optimizer": hashed(moments),
            "losses": hashlib.sha256(" ".join(map(float.hex, self.losses)).encode()).hexdigest(),
        }


def hashed(tensors: Iterable[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for one in tensors:
        found.update(one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def by_one_process(case: Case) -> dict[str, str]:
    """Train with `accumulate: leaves`, by tolariad's own step; the task seeds its draws by leaf."""
    training = Training(case)

    def loss(model: nn.Module, batch: tuple[int, int]) -> torch.Tensor:
        seed_leaf(SEED, *batch)
        return case.loss(model, *batch)

    setup = setup_of(training.model, loss, None if case.clip is None else case.clipped)
    setup.host = setup.owners = (Owner("host", training.optimizer),)
    setup.moves = False
    for step in range(1, case.steps + 1):
        measured = forward_backward(setup, [(step, leaf) for leaf in range(case.leaves_of(step))], step)
        update(setup, skip=False)
        drop_gradients(setup.owners)
        training.losses.append(measured.loss)
    return training.hashes()


def by_ranks(
    case: Case, rank: int, ranks: int, mapping: int | None, *, until: int = 0, path: Path | None = None
) -> dict[str, str]:
    """Train by exact sums up to step `until`, from what `path` holds; rank 0 saves there at the end."""
    training = Training(case, path)
    model: nn.Module = training.model
    if case.ddp is not None and ranks > 1:
        model = DistributedDataParallel(model, **case.ddp)
    exact = ExactSum(model, rank=rank, ranks=ranks, leaves=case.leaves, mapping=mapping, rng_seed=SEED)
    for step in range(training.step + 1, (until or case.steps) + 1):
        count = case.leaves_of(step)
        with exact.step(step, count) as mine:
            for leaf in mine:
                with exact.leaf(leaf):
                    loss = case.loss(model, step, leaf)
                    exact.note(leaf, loss.item())
                    (loss / count).backward(retain_graph=case.backwards > 1)
                    for _ in range(1, case.backwards):
                        (loss / count).backward()
        training.update(sum(loss for (loss,) in exact.numbers) / count)
    exact.close()
    if rank == 0 and path is not None:
        training.save(path)
    return training.hashes()


def by_plain_ddp(case: Case, rank: int, ranks: int) -> dict[str, str]:
    """Train by DDP as torch does it: each rank divides its losses by the number of its leaves, DDP by that of ranks."""
    training, mine = Training(case), block(case.leaves, ranks, rank)
    model = DistributedDataParallel(training.model)
    for step in range(1, case.steps + 1):
        losses = []
        for leaf in mine:
            seed_leaf(SEED, step, leaf)
            with nullcontext() if leaf == mine[-1] else model.no_sync():
                loss = case.loss(model, step, leaf)
                losses.append(loss.item())
                (loss / len(mine)).backward()
        every: list[list[float]] = [[] for _ in range(ranks)]
        distributed.all_gather_object(every, losses)
        training.update(sum(loss for one in every for loss in one) / case.leaves)
    return training.hashes()
