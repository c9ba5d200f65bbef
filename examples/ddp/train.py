"""A training loop for several processes: `torchrun --nproc-per-node 2 examples/ddp/train.py`.

The lines with tolariad are those of a loop of one process. Kill any process, or all, and start the same command again:
the run goes on, and ends with the same bits.
"""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tolariad import Tolaria

EPOCHS = 10


def main() -> None:
    """Train on this process's part of the data."""
    distributed.init_process_group("gloo")
    torch.manual_seed(0)  # the same data and the same model at every start
    inputs = torch.randn(2048, 16)
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 32, sampler=sampler)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = Tolaria({"tolaria": {"rng_seed": 1}}, run_dir="runs/ddp").run(model, optimizer, loader)

    for epoch in run.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in run.batches():
            run.step(nn.functional.cross_entropy(model(x), y))
        model.eval()
        with torch.no_grad():
            accuracy = (net(inputs).argmax(1) == data.tensors[1]).float().mean().item()
        model.train()
        run.validated(accuracy=accuracy)
        if distributed.get_rank() == 0:
            print(f"epoch {epoch}: {accuracy:.3f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
