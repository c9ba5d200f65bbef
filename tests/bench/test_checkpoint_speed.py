"""The price of a checkpoint: 100 million parameters with AdamW's state, 1.2 GB, beside the bare operations and peers.

The rounds of all of them are interleaved; shown are medians. It runs in a trainer's environment. Nothing is judged
here: the table is for whoever reads it.

    python -m tests.bench.test_checkpoint_speed [--folder DIR] [--millions 100] [--rounds 3] [--no-peers]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from blake3 import blake3

from journal import Journal
from tests.bench.machine import as_a_trainer, become_a_trainer
from tolariad.core import messages as m
from tolariad.storage import Pace
from tolariad.storage.verify import verify
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.restore import load, restore
from tolariad.trainer.checkpoints.save import Saver
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.data.feed import TensorFeed
from tolariad.trainer.optim.owners import Owner
from tolariad.trainer.orders.numbered import ActedOrders
from tolariad.trainer.parts.whole import parts_of
from tolariad.trainer.process.code import LoadedCode
from tolariad.trainer.rollback.participants import Participants
from tolariad.trainer.setup import ALONE

WIDTH = 1024
MODULE = "tests.bench.test_checkpoint_speed"
EVENT = msgspec.msgpack.encode({"type": "StepCompleted", "filler": "x" * 160})


def trained(millions: float) -> Any:
    """A setup as far as checkpoints look at one: square layers, and AdamW after its first step."""
    layers = max(1, round(millions * 1e6 / (WIDTH * WIDTH + WIDTH)))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    names = ("model_hash", "task_hash", "config_hash", "python", "torch", "numpy", "device", "cpu", "gpu", "cuda")
    setup = SimpleNamespace(
        model=model,
        owners=[Owner("host", optimizer)],
        host=(Owner("host", optimizer),),
        garden=no_seeds(),
        pruner=no_masks(),
        train=TensorFeed([torch.zeros(2)], 1, 0),
        task=object(),
        code=LoadedCode(),
        average=None,
        scaling=None,
        ledger=SimpleNamespace(changes=(), count=lambda _: 0, move_to=lambda *_: None, say_unrecorded=lambda *_: None),
        participants=Participants(),
        place=ALONE,
        rates=SimpleNamespace(global_step=0, state_dict=lambda: None, restored=lambda *_: None),
        acted=ActedOrders(),
        watch=SimpleNamespace(state=lambda: None, load_state=lambda _: None),
        device=torch.device("cpu"),
        environment=SimpleNamespace(**dict.fromkeys(names, "")),
    )
    setup.parts = parts_of(setup)
    return setup


def no_seeds() -> SimpleNamespace:
    """A garden as far as checkpoints look at one: without slots."""
    return SimpleNamespace(plots={}, active=False, owned_by_seeds=list, state=dict, load=lambda *_: None, prefixes=())


def no_masks() -> SimpleNamespace:
    """A pruner as far as checkpoints look at one: without masks."""
    return SimpleNamespace(
        masked=(),
        displaced={},
        check=lambda _: None,
        load=lambda *_: None,
        mark=lambda: None,
        go_back=lambda _: None,
    )


def timed(call: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def take(saver: Saver, number: int, reason: m.CheckpointReason = m.CheckpointReason.END) -> tuple[float, float, Any]:
    """One checkpoint: seconds training is held, seconds until it is there, and its report."""
    begun = time.perf_counter()
    saver.order(m.TakeCheckpoint(id=f"c{number:06d}", reason=reason))
    saver.capture(Position(number, 1, number))
    held = time.perf_counter() - begun
    while (report := saver.finished()) is None:
        time.sleep(0.0005)
    return held, time.perf_counter() - begun, report


def raw_write(folder: Path, data: memoryview) -> None:
    """The same bytes into one new file, buffered, with one fdatasync."""
    path = folder / "raw"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    while data:
        data = data[os.write(descriptor, data[: 1 << 26]) :]
    os.fdatasync(descriptor)
    os.close(descriptor)
    path.unlink()


def measured(folder: Path, millions: float, rounds: int) -> dict[str, list[float]]:
    """Seconds of each operation, one list a round."""
    setup = trained(millions)
    saver = Saver(setup, folder / "checkpoints", "ff")
    saver.prepare(Position(1, 1, 1))
    size = capture(setup, Position(0, 1, 0)).nbytes
    one, other = (np.ones(size, np.uint8) for _ in range(2))
    took: dict[str, list[float]] = {}
    take(saver, 1)
    for number in range(2, rounds + 2):
        note = lambda name, seconds: took.setdefault(name, []).append(seconds)  # noqa: E731
        note("memcpy", timed(lambda: np.copyto(other, one)))
        held, there, report = take(saver, number)
        note("held", held)
        note("raw write + fdatasync", timed(lambda: raw_write(folder, memoryview(one))))
        note("committed", there)
        path = folder / "checkpoints" / report.id
        hashing = timed(lambda: blake3(max_threads=blake3.AUTO).update(one.data))
        note("BLAKE3", hashing)
        note("verified", timed(partial(verify, path, report.manifest)))
        loaded = load(path, report.manifest)
        note("restored", timed(partial(restore, setup, loaded)))
        del loaded
        shutil.rmtree(path)
    return took


def beside(folder: Path, millions: float, limit: float | None, seconds: float = 8.0) -> tuple[float, float, float]:
    """p50 and p99 in ms of durable appends to a journal while a checkpoint is written, and that one's seconds."""
    journal = Journal.open(folder / "journal")
    journal.begin(run_id=bytes(16), context_hash=bytes(32), capture=lambda: b"\xc0", wall_ns=0, boot_id=bytes(16))
    done = threading.Event()
    written: list[float] = []

    def write() -> None:
        if limit != 0:
            saver = Saver(trained(millions), folder / "beside", "ff", paced=partial(Pace, limit))
            written.append(take(saver, 1, m.CheckpointReason.INTERVAL)[1])
        else:
            time.sleep(seconds)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    took = []
    while not done.is_set():
        took.append(timed(lambda: journal.commit([EVENT], epoch=1, step=1, wall_ns=1, mono_ns=1)) * 1e3)
        time.sleep(0.002)
    thread.join()
    journal.close()
    shutil.rmtree(folder / "beside", ignore_errors=True)
    shutil.rmtree(folder / "journal")
    took.sort()
    return took[len(took) // 2], took[int(len(took) * 0.99)], written[0] if written else 0.0


def peers(folder: Path, millions: float) -> dict[str, tuple[float, float]]:
    """Seconds training is held and seconds until it is on disk, of torch's own ways."""
    import torch.distributed.checkpoint as dcp

    setup = trained(millions)
    state = {"model": setup.model.state_dict(), "optimizer": setup.owners[0].optimizer.state_dict()}
    flat = {f"model.{k}": v for k, v in state["model"].items()}
    flat |= {f"o.{n}.{k}": v for n, held in state["optimizer"]["state"].items() for k, v in held.items()}

    def save() -> None:
        with (folder / "peer.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    found = {"torch.save + fsync": (timed(save),) * 2}
    found["dcp.save"] = (timed(lambda: dcp.save(flat, checkpoint_id=str(folder / "dcp"), no_dist=True)),) * 2
    try:
        begun = time.perf_counter()
        future = dcp.async_save(flat, checkpoint_id=str(folder / "dcp-async"), no_dist=True)
        stall = time.perf_counter() - begun
        future.result()  # type: ignore[union-attr]
        found["dcp.async_save"] = (stall, time.perf_counter() - begun)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        print(f"dcp.async_save does not run here: {error}")
    for name in ("dcp", "dcp-async"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "peer.pt").unlink()
    return found


def show(folder: Path, millions: float, rounds: int, *, with_peers: bool) -> dict[str, float]:
    """Print the tables; seconds of each operation."""
    print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"{millions:g} M parameters, AdamW, {torch.get_num_threads()} torch threads, load {os.getloadavg()[0]:.1f}")
    took = {name: statistics.median(values) for name, values in measured(folder, millions, rounds).items()}
    for name, against, wanted in (
        ("held", "memcpy", "at most 1.2"),
        ("committed", "raw write + fdatasync", "at most 1.7"),
        ("restored", "memcpy", "at most 1.3"),
        ("verified", "BLAKE3", "at most 1.11"),
    ):
        ratio = took[name] / took[against]
        bare = f"{against:22} {took[against] * 1e3:8.0f} ms"
        print(f"  {name:10} {took[name] * 1e3:8.0f} ms   {bare}   {ratio:5.2f} x ({wanted})")
    if with_peers:
        for name, (stall, there) in peers(folder, millions).items():
            print(f"  {name:20} held {stall * 1e3:8.0f} ms, on disk after {there * 1e3:8.0f} ms")
    for name, limit in (("nothing", 0.0), ("a checkpoint at 100 MB/s", 1e8), ("a checkpoint, no limit", None)):
        p50, p99, there = beside(folder, millions, limit)
        print(f"  journal beside {name:26} p50 {p50:6.2f} ms, p99 {p99:6.2f} ms; written in {there:5.1f} s")
    return took


def test_a_small_model_is_measured(tmp_path: Path) -> None:
    """The bench itself: what checkpoints read of a set-up changes, and the long form runs seldom."""
    took = measured(tmp_path, 0.01, 1)

    assert took.keys() == {"memcpy", "held", "raw write + fdatasync", "committed", "BLAKE3", "verified", "restored"}


@pytest.mark.bench
def test_what_a_checkpoint_costs(tmp_path: Path) -> None:
    """The whole size; it takes about a minute and 5 GB of disk."""
    text = as_a_trainer(MODULE, "--folder", str(tmp_path))
    print(text)
    assert all(name in text for name in ("held", "committed", "restored", "verified", "dcp.async_save", "no limit"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--millions", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args()
    become_a_trainer(MODULE)
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        show(Path(made), given.millions, given.rounds, with_peers=not given.no_peers)
