"""The run of restart_task as a program without a recorder: it keeps one checkpoint, and goes on from it if it is there.

    python -m tests.bench.restarted_alone torch|dcp|lightning FOLDER MILLIONS

It prints what it does, each with the moment by CLOCK_MONOTONIC in ns: `trains` once the state is there, `saved`, and
each step with its number.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.bench.restart_task import RestartTask

SAVED_AT = 3


def say(what: str) -> None:
    """Print one line at once."""
    print(what, time.monotonic_ns(), flush=True)


def by_hand(way: str, folder: Path, cfg: Any) -> None:
    """A loop of one's own, with torch.save or torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    task = RestartTask()
    model, (rows,) = task.model(cfg), task.train_data(cfg)
    optimizer = torch.optim.AdamW(model.parameters())
    kept, step = folder / way, 0
    if kept.exists() and way == "torch":
        held = torch.load(kept, mmap=True)
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        step = held["step"]
    elif kept.exists():
        of_model, of_optimizer = get_state_dict(model, optimizer)
        held = {"model": of_model, "optimizer": of_optimizer, "step": 0}
        dcp.load(held, checkpoint_id=str(kept))
        set_state_dict(model, optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"])
        step = held["step"]
    say("trains")
    while True:
        step += 1
        task.loss(model, (rows[step : step + 1],)).backward()
        optimizer.step()
        optimizer.zero_grad()
        say(f"step {step}")
        if step == SAVED_AT:
            if way == "torch":
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, kept)
            else:
                of_model, of_optimizer = get_state_dict(model, optimizer)
                dcp.save({"model": of_model, "optimizer": of_optimizer, "step": step}, checkpoint_id=str(kept))
            say("saved")


def by_lightning(folder: Path, cfg: Any) -> None:
    """Lightning's Trainer with its own checkpoint."""
    import lightning

    kept = folder / "lightning.ckpt"

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.task = RestartTask()
            self.model = self.task.model(cfg)

        def training_step(self, batch: Any) -> torch.Tensor:
            return self.task.loss(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.model.parameters())

        def on_train_start(self) -> None:
            say("trains")

        def on_train_batch_end(self, *_: Any) -> None:
            step = self.trainer.global_step
            say(f"step {step}")
            if step == SAVED_AT:
                self.trainer.save_checkpoint(kept)
                say("saved")

    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*RestartTask().train_data(cfg)), batch_size=1)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Module(), rows, ckpt_path=kept if kept.exists() else None)


def main() -> None:
    """Train until the process is killed."""
    way, folder, millions = sys.argv[1:]
    cfg = SimpleNamespace(task_options={"millions": millions})
    if way == "lightning":
        by_lightning(Path(folder), cfg)
    else:
        by_hand(way, Path(folder), cfg)


if __name__ == "__main__":
    main()
