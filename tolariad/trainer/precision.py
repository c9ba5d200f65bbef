"""The number format of forward passes: fp32, or bf16 by torch.autocast.

Promises: parameters, gradients, optimizer state and averages stay as the model has them; only what autocast knows to be
safe is computed in bf16, in training and in validation alike. It must not know: models, steps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from tolariad.core.settings import Settings

Forward: TypeAlias = Callable[[], AbstractContextManager[Any]]


def forward_context(settings: Settings, device: torch.device) -> Forward:
    """What makes the context of one forward pass. Raises SetupRefused for fp16."""
    if settings.precision == "fp16":
        raise SetupRefused(
            "precision: fp16 is not there yet: it needs a gradient scaler, and the journal knows no step that a scaler "
            "skipped; take bf16, which has the range of fp32 and needs none"
        )
    if settings.precision == "bf16":
        return lambda: torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext
