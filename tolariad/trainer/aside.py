"""What a forward pass changes beside gradients, kept aside so that a skipped step leaves nothing behind.

Promises: after `put_back` every buffer and the generators that layers draw from are, bit for bit, as at `keep`, so a run
that skipped a batch goes on as one that never saw it. A buffer that nobody writes is copied once, not every step.
It must not know: why a step is skipped.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

# A written tensor shows another version; running statistics are written behind autograd's back and show none.
_UNKNOWN: Final = -1


class _Slot:
    """One buffer of one module, and its copy."""

    __slots__ = ("_copy", "_live", "_module", "_name", "_shows_writes", "_version")

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module = module
        self._name = name
        self._shows_writes = not isinstance(module, _NormBase)
        self._live: torch.Tensor | None = None
        self._copy: torch.Tensor | None = None
        self._version = _UNKNOWN

    def keep(self) -> None:
        """Copy the buffer, unless it is the tensor that was copied and nobody has written it since."""
        live = self._module._buffers[self._name]  # noqa: SLF001 - as fast as it gets
        if live is None:
            self._live = self._copy = None
            return
        is_copied = live is self._live and self._copy is not None
        version = live._version if self._shows_writes and not live.is_inference() else _UNKNOWN  # noqa: SLF001
        if is_copied and version == self._version != _UNKNOWN:
            return
        if is_copied and self._copy is not None:
            self._copy.copy_(live)
        else:
            self._copy = live.detach().clone()
        self._live, self._version = live, version

    def put_back(self) -> None:
        """The tensor that was there is there again, with the values it had."""
        if self._live is not None and self._copy is not None:
            self._live.copy_(self._copy)
        # A forward pass may also have put another tensor there.
        self._module._buffers[self._name] = self._live  # noqa: SLF001


class Aside:
    """The buffers of one model and the generators of its device."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._slots = [_Slot(module, name) for module in model.modules() for name in module._buffers]  # noqa: SLF001
        self._cuda = device if device.type == "cuda" else None
        self._host_draws = self._device_draws = torch.empty(0, dtype=torch.uint8)

    def keep(self) -> None:
        """Before a forward pass."""
        if self._slots:
            with torch.no_grad():
                for slot in self._slots:
                    slot.keep()
        self._host_draws = torch.get_rng_state()
        if self._cuda is not None:
            self._device_draws = torch.cuda.get_rng_state(self._cuda)

    @torch.no_grad()
    def put_back(self) -> None:
        """After it: everything is as it was kept last."""
        for slot in self._slots:
            slot.put_back()
        torch.set_rng_state(self._host_draws)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._device_draws, self._cuda)
