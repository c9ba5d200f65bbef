"""What is trained while its ranks are killed: a task for `tolariad run`, and a program for torchrun.

Each rank shows its process and its newest step in a file of the folder `RANKS_SHOWN`; a program shows its recorder too.
`RANKS_EXACT`: the leaves of a step of exact sums; 0: DDP adds up. Everything draws, and BatchNorm's statistics differ
by rank.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from tolariad import Tolaria

ROWS, BATCH = 96, 4
LEAVES = int(os.environ.get("RANKS_EXACT", "0"))
EXACT = {"parallel": {"exact": True, "leaves": LEAVES}} if LEAVES else {}
_WIDTH = 10


class Shown(NamedTuple):
    """A process, and its newest step."""

    pid: int
    step: int


def show(name: str, pid: int, step: int) -> None:
    """Show a process under a name."""
    file = os.open(Path(os.environ["RANKS_SHOWN"]) / name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.pwrite(file, f"{pid:{_WIDTH}}{step:{_WIDTH}}".encode(), 0)
    os.close(file)


def shown(folder: Path) -> dict[str, Shown]:
    """Return what is shown in a folder."""
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    return {
        name: Shown(int(text[:_WIDTH]), int(text[_WIDTH:])) for name, text in texts.items() if len(text) == 2 * _WIDTH
    }


class Rows(Dataset):
    """Rows that draw when they are read."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.randn(8) + row % 4, row % 4


def network() -> nn.Module:
    """Return the model."""
    return nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4))


class Task:
    """The task."""

    def __init__(self) -> None:
        self.rank = int(sys.argv[sys.argv.index("--rank") + 1]) if "--rank" in sys.argv else 0

    def model(self, _: object) -> nn.Module:
        """Return the model: the process of this rank has begun."""
        show(f"rank {self.rank}", os.getpid(), 0)
        return network()

    def train_data(self, _: object) -> DataLoader:
        """Return the data, in an order of the loader's own."""
        return DataLoader(Rows(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(3))

    def val_data(self, _: object) -> DataLoader:
        """Return the same."""
        return DataLoader(Rows(), 32)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the loss."""
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the metrics of a batch."""
        return {"loss": self.loss(model, batch)}

    def on_step_end(self, _: nn.Module, step: int) -> None:
        """Show the step."""
        show(f"rank {self.rank}", os.getpid(), step)


def main(run_dir: str, epochs: int, settings: dict[str, object]) -> None:
    """Be a rank of torchrun."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    show(f"rank {rank}", os.getpid(), 0)
    torch.manual_seed(0)
    sampler = None if LEAVES else DistributedSampler(Rows(), seed=2)
    loader = DataLoader(Rows(), BATCH, sampler=sampler, shuffle=sampler is None)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tolaria = Tolaria({"tolaria": {**settings, **EXACT}}, run_dir=run_dir)
    run = tolaria.run(model, optimizer, loader)
    with run:
        for epoch in run.epochs(epochs):
            if sampler is not None:
                sampler.set_epoch(epoch)
            for inputs, targets in run.batches():
                run.step(nn.functional.cross_entropy(model(inputs), targets))
                show(f"rank {rank}", os.getpid(), run._trainer.step)
                if rank == 0:
                    show("recorder", tolaria._live._recorder._process.pid, run._trainer.step)
            run.validated(loss=0.0)
    distributed.destroy_process_group()


if __name__ == "__main__":
    import json

    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
