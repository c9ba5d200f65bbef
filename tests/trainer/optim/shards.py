"""One rank of a sharded update, for test_cautious_sharded; as a program: RANK WORLD FOLDER."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tolariad.trainer.optim import CautiousAdamW

OPTIONS = (
    {"foreach": False},
    {"foreach": False, "live_mean": True},
    {"foreach": True},
    {"foreach": True, "live_mean": True},
)


def gradients():
    """Only every third row has a gradient, so the means of the parts differ widely."""
    generator = torch.Generator().manual_seed(7)
    rows = (torch.arange(10) % 3 == 0).double()[:, None]
    return [torch.randn(10, 4, generator=generator, dtype=torch.float64) * rows for _ in range(5)]


def trained(place, **options):
    """Return the parameter after five steps, placed by `place`, and the last kept fraction."""
    parameter = torch.nn.Parameter(place(torch.arange(40, dtype=torch.float64).reshape(10, 4)))
    optimizer = CautiousAdamW([parameter], lr=0.1, track_kept_fraction=True, **options)
    for gradient in gradients():
        parameter.grad = place(gradient)
        optimizer.step()
    return parameter.detach(), optimizer.last_kept_fraction


def rank(number, world, folder):
    """Return the results of all OPTIONS, sharded by rows and replicated."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=number, world_size=world, timeout=timedelta(seconds=100)
    )
    try:
        mesh = DeviceMesh("cpu", torch.arange(world))
        ends = []
        for options in OPTIONS:
            results = []
            for placement in (Shard(0), Replicate()):
                parameter, kept = trained(lambda t, p=placement: distribute_tensor(t, mesh, [p]), **options)
                results.append((parameter.full_tensor(), kept))
            ends.append(results)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return ends


if __name__ == "__main__":
    rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
