"""Groups of ranks on a GPU: a killed group ends with the same bits, and exact sums have one hash. Skipped without one.

Over NCCL if there is a device for each rank. NCCL refuses two ranks on one device, so there gloo carries the tensors.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.library.ranks.groups import Program
from tests.library.ranks.test_exact import Exact, outcome
from tests.recorded import of, sound
from tolariad.core import messages as m

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
LIMIT_S = 240.0
DEVICE = "cuda"


class OnDevice:
    """What a program does with a device: the model lies there, and each batch is copied there."""

    device: str
    # The rank that is killed before this step; none.
    dies: tuple[int, int] | None

    def of(self, device: str, dies: tuple[int, int] | None) -> OnDevice:
        """Choose the device of this rank."""
        self.device, self.dies = device, dies
        self.wraps = lambda model: DistributedDataParallel(model.to(device))
        return self

    def step_of(self, run: Any, batch: Any, epoch: int, rank: int, model: Any, *more: Any) -> None:
        """Make a step, or die."""
        if self.dies == (rank, self.step + 1):
            os.kill(os.getpid(), signal.SIGKILL)
        super().step_of(run, [one.to(self.device) for one in batch], epoch, rank, model, *more)


class PlainProgram(OnDevice, Program):
    """DDP's own sums."""


class ExactProgram(OnDevice, Exact):
    """Exact sums."""


def be(kind: type, rank: int, ranks: int, kind_of_device: str, folder: str, dies: tuple[int, int] | None) -> None:
    """Be one rank of a group, in a new process: one that has used a device cannot be forked."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": Path(folder).name}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    torch.set_num_threads(1)
    device, backend = "cpu", "gloo"
    if kind_of_device == "cuda":
        count = torch.cuda.device_count()
        device, backend = f"cuda:{rank % count}", "nccl" if count >= ranks else "gloo"
        torch.cuda.set_device(device)
        torch.cuda.init()
    distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = kind(Path(folder).parent / "run").of(device, dies)(rank)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def start(kind: type, ranks: int, folder: Path, dies: tuple[int, int] | None = None) -> list[dict[str, Any] | None]:
    """Run a group. Return what each rank ends with; None for one that has not come to its end."""
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    given = [(kind, rank, ranks, DEVICE, str(folder), dies) for rank in range(ranks)]
    processes = [context.Process(target=be, args=one) for one in given]
    for one in processes:
        one.start()
    for one in processes:
        one.join(LIMIT_S)
        one.kill()
    ends = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(one.read_text()) if one.exists() else None for one in ends]


def test_a_group_that_was_killed_ends_with_the_bits_of_one_that_was_not(tmp_path):
    """Two ranks: rank 1 is killed before its fifth step, and the next start goes on."""
    calm = start(PlainProgram, 2, tmp_path / "calm" / "1")
    lost = start(PlainProgram, 2, tmp_path / "killed" / "2", (1, 5))
    found = start(PlainProgram, 2, tmp_path / "killed" / "3")

    assert lost[1] is None
    assert None not in calm
    assert found == calm
    assert not of(sound(tmp_path / "killed" / "run"), m.RerunDiverged)


def test_exact_sums_on_a_device_have_one_hash_for_one_two_and_three_ranks(tmp_path):
    """Parameters, statistics, moments, and the recorded numbers of each step."""
    hashes = set()
    for ranks in (1, 2, 3):
        found = start(ExactProgram, ranks, tmp_path / f"of {ranks}" / str(ranks))
        assert None not in found
        hashes |= {outcome(one, tmp_path / f"of {ranks}" / "run") for one in found}

    assert len(hashes) == 1
