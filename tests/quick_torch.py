"""Spare tests a cost of torch that depends on the depth of the stack, which is many times that of a trainer."""

from __future__ import annotations

from types import SimpleNamespace

import torch.cuda
import torch.mtia
import torch.xpu


def keep_no_stacks() -> None:
    """Let `torch.manual_seed` format no stack.

    For each kind of device that is not in use yet, it keeps the seed and the caller's stack. It shows that if the first
    use of the device fails. Below pytest that is sixty frames, and was a fifth of the time of an analysis.
    """
    for module in (torch.cuda, torch.xpu, torch.mtia):
        module.traceback = SimpleNamespace(format_stack=list)
