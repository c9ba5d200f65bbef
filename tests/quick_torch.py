"""Spare tests what only tests pay for: stacks of pytest that torch formats, objects of pytest that a walk enters."""

from __future__ import annotations

from types import SimpleNamespace

import torch.cuda
import torch.mtia
import torch.xpu

from tolariad.trainer.data import walk

_PYTEST = frozenset({"pytest", "_pytest", "pluggy"})


def keep_no_stacks() -> None:
    """Let `torch.manual_seed` format no stack.

    For each kind of device that is not in use yet, it keeps the seed and the caller's stack. It shows that if the first
    use of the device fails. Below pytest that is sixty frames, and was a fifth of the time of an analysis.
    """
    for module in (torch.cuda, torch.xpu, torch.mtia):
        module.traceback = SimpleNamespace(format_stack=list)


def enter_no_pytest() -> None:
    """Let the walk through the user's objects enter none of pytest's.

    Functions of a test's module name pytest's objects where it has rewritten their assertions. A walk then visited
    thousands of objects, several times for each checkpoint: a third of a second each time.
    """
    walk._LIBRARIES |= _PYTEST
