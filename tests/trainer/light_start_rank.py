"""`python -m tests.trainer.light_start_rank`: be the only rank of a group, with a model in DDP, and train.

Then import the compiler, and train again from the beginning.
"""

from __future__ import annotations

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tolariad.trainer.torch_private import light_start

# A part of the compiler that is loaded with it.
COMPILER = "torch._dynamo.eval_frame"


def trained() -> list[float]:
    """Return the weights after two steps."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [float(one) for parameter in model.parameters() for one in parameter.flatten()]


def main() -> None:
    """Say whether the compiler was imported, before and after it is."""
    light_start.install()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    first = trained()
    print("compiler", COMPILER in sys.modules)
    __import__("torch._dynamo.config")
    print(f"compiler {COMPILER in sys.modules}, same {trained() == first}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
