"""Groups of ranks as forks of the test's process, over gloo: what torchrun starts, without its seconds."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.library.small import CONFIG, bits, data
from tolariad import Tolaria

EPOCHS, BATCH = 3, 8
_numbers = itertools.count(1)
# A group that hangs would hang the tests: its ranks are killed then.
_LIMIT_S = 240.0
_STACKS_S = _LIMIT_S - 5


def network() -> nn.Module:
    """Return a network whose state differs by rank (BatchNorm) and draws (Dropout), with three pairs of parameters."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4))


class Program:
    """The program of each rank: it trains a network, and returns what it ends with."""

    def __init__(self, run_dir: Path, *, samples: int = 72, epochs: int = EPOCHS, **options: Any):
        self.run_dir, self.samples, self.epochs, self.options = run_dir, samples, epochs, options
        self.model: Callable[[], nn.Module] = network
        self.optimizes: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
        self.wraps: Callable[[nn.Module], Any] = DistributedDataParallel
        # Called before and after each step of a rank, with the loop's state.
        self.before: Callable[[Program, int, int], None] = lambda *_: None
        self.after: Callable[[Program, int, int], None] = lambda *_: None
        # What `run` is given besides.
        self.more: dict[str, Any] = {}
        # Of a rank's loss in a batch of an epoch.
        self.factor: Callable[[int, int, int], float] = lambda *_: 1.0
        # Whether the loop stands in `with run:`.
        self.holds = False
        self.step = 0

    def loader(self) -> tuple[Any, Any]:
        """Return this rank's loader and its sampler."""
        sampler = DistributedSampler(data(self.samples), seed=2)
        return DataLoader(data(self.samples), BATCH, sampler=sampler), sampler

    def __call__(self, rank: int) -> dict[str, Any]:
        """Train in this process."""
        loader, sampler = self.loader()
        self.wrapped = model = self.wraps(self.model())
        optimizer = self.optimizes(model.parameters(), lr=0.01)
        config = {**CONFIG["tolaria"], **self.options}
        self.tolaria = Tolaria({"tolaria": config}, run_dir=self.run_dir)
        self.run = run = self.tolaria.run(model, optimizer, loader, **self.more)
        with run if self.holds else nullcontext():
            self.train(run, rank, model, sampler)
        parts = {name: one.hex() for name, one in bits(getattr(model, "module", model)).items()}
        moments = optimizer.state_dict()["state"].values()
        parts["optimizer"] = "".join(one.cpu().numpy().tobytes().hex() for held in moments for one in held.values())
        return {"phase": run.result.phase, "steps": run.result.steps, "bits": parts}

    def train(self, run: Any, rank: int, model: nn.Module, sampler: Any) -> None:
        """Be the loop."""
        for epoch in run.epochs(self.epochs):
            if sampler is not None:
                sampler.set_epoch(epoch)
            for batch in run.batches():
                self.step_of(run, batch, epoch, rank, model)
            run.validated(loss=float(rank))

    def step_of(self, run: Any, batch: Any, epoch: int, rank: int, model: nn.Module, *_: Any) -> None:
        """Make a step."""
        # Of the trainer: a group that came back does not begin with step 1.
        self.before(self, rank, run._trainer.step + 1)
        inputs, targets = batch
        loss = nn.functional.cross_entropy(model(inputs), targets) * self.factor(rank, epoch, run.batch)
        run.step(loss)
        self.step = run._trainer.step
        self.after(self, rank, self.step)


def start(ranks: int, program: Callable[[int], Any], folder: Path) -> list[Any]:
    """Run a program in all ranks of a new group. Return what each returns; of one that dies, its exit code."""
    number, pids, ends = next(_numbers), [], []
    sys.stdout.flush()
    for rank in range(ranks):
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _be(rank, ranks, program, folder, number, theirs)
        os.close(theirs)
        pids.append(pid)
        ends.append(ours)
    give_up = time.monotonic() + _LIMIT_S
    codes: dict[int, int] = {}
    while len(codes) < ranks:
        for rank, pid in enumerate(pids):
            if rank not in codes and os.waitpid(pid, os.WNOHANG) != (0, 0):
                codes[rank] = 0
        if time.monotonic() > give_up:
            for rank, pid in enumerate(pids):
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"ranks {sorted({*range(ranks)} - {*codes})} of {ranks} did not end")
        time.sleep(0.01)
    found = []
    for end in ends:
        with os.fdopen(end) as file:
            text = file.read()
        found.append(json.loads(text) if text else None)
    return found


def _be(rank: int, ranks: int, program: Callable[[int], Any], folder: Path, number: int, output: int) -> None:
    """Be one rank, in a forked child."""
    code = 1
    try:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_PORT": str(number),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        torch.set_num_threads(1)
        threading.Thread(target=_show_stacks, args=(rank,), daemon=True).start()
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/group{number}", rank=rank, world_size=ranks
        )
        found = program(rank)
        with os.fdopen(output, "w") as file:
            json.dump(found, file)
        distributed.destroy_process_group()
        code = 0
    except BaseException as error:
        traceback.print_exc()
        with os.fdopen(output, "w") as file:
            json.dump({"error": f"{type(error).__name__}: {error}"}, file)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _show_stacks(rank: int) -> None:
    """Print the stacks of all threads of a rank that hangs."""
    time.sleep(_STACKS_S)
    for frame in sys._current_frames().values():
        sys.stderr.write(f"rank {rank}:\n{''.join(traceback.format_stack(frame))}")
    sys.stderr.flush()


def until_done(ranks: int, program: Callable[[int], Any], folder: Path, most: int = 8) -> tuple[list[Any], int]:
    """Start the group again until all its ranks return, as torchrun does. Return what they return, and the starts."""
    for starts in range(1, most + 1):
        found = start(ranks, program, folder)
        if all(one is not None and "error" not in one for one in found):
            return found, starts
    raise AssertionError(f"the group did not end in {most} starts: {found}")


class Kills:
    """Kills processes of a group, each once: `1 before 4` is rank 1 before its step 4. `before`, `after`: as `Program`.

    A victim is a rank, `recorder`, or `all`.
    """

    def __init__(self, folder: Path, *kills: str, number: int = signal.SIGKILL):
        self.folder, self.number = folder, number
        self.kills = [tuple(kill.split()) for kill in kills]
        for number, _ in enumerate(kills):
            (folder / f"kill{number}").touch()

    def of(self, place: str) -> Callable[[Program, int, int], None]:
        """Return the hook for `before` or `after`."""

        def act(program: Program, rank: int, step: int) -> None:
            for number, (victim, where, at) in enumerate(self.kills):
                if where == place and step == int(at) and self._is_for(number, victim, rank):
                    recorder = program.tolaria._live._recorder if victim == "recorder" else None
                    os.kill(os.getpid() if recorder is None else recorder._process.pid, self.number)

        return act

    def _is_for(self, number: int, victim: str, rank: int) -> bool:
        """Return whether this rank is to act now, for the first time."""
        if victim == "all":
            token = self.folder / f"kill{number} of {rank}"
            is_new = not token.exists()
            token.touch()
            return is_new
        if rank != (0 if victim == "recorder" else int(victim)):
            return False
        try:
            (self.folder / f"kill{number}").unlink()
        except FileNotFoundError:
            return False
        return True

    def into(self, program: Program) -> Program:
        """Return the program, which now kills."""
        program.before, program.after = self.of("before"), self.of("after")
        return program
