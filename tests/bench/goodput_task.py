"""A small model with a step of some ten milliseconds, on two ranks: as a task, and as a program under torchrun.

    torchrun --nproc-per-node 2 -m tests.bench.goodput_task FOLDER EVERY

The program has torch.save checkpoints, one each EVERY steps. Both write into FOLDER: each rank its process id, and rank
0 a line for each step, with its number and the moment by CLOCK_MONOTONIC in ns.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

WIDTH, BATCH, BATCHES = 1024, 64, 1 << 20


class Marks:
    """What a rank writes down."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank, self._folder = rank, folder
        self._file = os.open(folder / "steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._is_known = False

    def after(self, step: int) -> None:
        """A step is made."""
        if not self._is_known:
            self._is_known = True
            (self._folder / f"rank-{self._rank}").write_text(str(os.getpid()))
        if self._rank == 0:
            os.write(self._file, f"{step} {time.monotonic_ns()}\n".encode())


def network() -> nn.Module:
    """Three million parameters."""
    torch.manual_seed(0)
    return nn.Sequential(*(one for _ in range(3) for one in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows that are made when they are read."""

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitems__(self, rows: list[int]) -> list[torch.Tensor]:
        return list((torch.tensor(rows, dtype=torch.float32) / len(self)).unsqueeze(1).expand(-1, WIDTH))


class GoodputTask:
    """The task. Its folder stands in GOODPUT_FOLDER."""

    def __init__(self) -> None:
        rank = int(sys.argv[sys.argv.index("--rank") + 1]) if "--rank" in sys.argv else 0
        self._marks = Marks(Path(os.environ["GOODPUT_FOLDER"]), rank)

    def model(self, cfg: Any) -> nn.Module:
        return network()

    def train_data(self, cfg: Any) -> Any:
        return torch.utils.data.DataLoader(Rows(), BATCH)

    def val_data(self, cfg: Any) -> Any:
        return None

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch) - 1).square().mean()

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        return {}

    def on_step_end(self, model: nn.Module, step: int) -> None:
        self._marks.after(step)


def main(folder: Path, every: int) -> None:
    """Be one rank of the program."""
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    marks, kept, step = Marks(folder, rank), folder / "kept.pt", 0
    net = network()
    optimizer = torch.optim.AdamW(net.parameters())
    if kept.exists():
        held = torch.load(kept)
        net.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        step = held["step"]
    model, rows = DistributedDataParallel(net), Rows()
    while True:
        first = (step * ranks + rank) * BATCH
        batch = torch.stack(rows.__getitems__(list(range(first, first + BATCH))))
        (model(batch) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0 and step % every == 0:
            new = folder / "kept.new"
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
            new.replace(kept)
        marks.after(step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
