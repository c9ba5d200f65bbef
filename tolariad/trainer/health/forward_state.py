"""What a forward pass changes beside gradients, kept aside so that a skipped step leaves nothing behind.

Promises: after `put_back` every buffer and the generators that layers draw from are, bit for bit, as at `keep`, so a run
that skipped a batch goes on as one that never saw it. (Torch's generators; what a loss draws from Python's and NumPy's stays
drawn, decision 0013.) A large buffer that nobody writes is copied once, not every step; one that begins to be written unseen
amid a run may keep what one skipped pass wrote, and is copied every time from then on.
It must not know: why a step is skipped.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_buffer_registration_hook

if TYPE_CHECKING:
    from collections.abc import Iterator

# A written tensor shows another version, unless it is written behind autograd's back: running statistics are, and so is
# whatever a module writes through `.data`, as codebooks with moving averages do.
_UNKNOWN: Final = -1
# A buffer of so many bytes is copied every time: to trust its version would save nothing.
_SMALL: Final = 64 * 1024
# A larger one is compared with its copy so many times in the beginning, and from then on at every power of two.
_COMPARED: Final = 16
# What a name stands for that is no buffer any more.
_GONE: Final = torch.empty(0)


class _Slot:
    """One buffer of one module, and its copy."""

    __slots__ = ("_copy", "_is_fresh", "_kept", "_live", "_module", "_name", "_shows_writes", "_version")

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module = module
        self._name = name
        # A scripted module may be a norm, or hold what one writes.
        self._shows_writes = not isinstance(module, (_NormBase, torch.jit.ScriptModule))
        self._live: torch.Tensor | None = None
        self._copy: torch.Tensor | None = None
        self._version = _UNKNOWN
        self._kept = 0
        self._is_fresh = False

    def keep(self, copies: list[torch.Tensor], lives: list[torch.Tensor]) -> None:
        """Say what is to be copied into what, unless nobody has written the buffer since it was copied."""
        # Of a scripted module this is no dict: it has no `get` and no `pop`, and cannot be iterated over.
        buffers = self._module._buffers  # noqa: SLF001 - as fast as it gets
        live = buffers[self._name] if self._name in buffers else _GONE  # noqa: SIM401
        copy = self._copy
        if live is not self._live or copy is None or live is None or live.numel() != copy.numel():
            self._begin(live)
            return
        if self._version != _UNKNOWN:
            version = live._version  # noqa: SLF001
            if version == self._version and self._is_still(live):
                return
            self._version = version if self._shows_writes else _UNKNOWN
        copies.append(copy)
        lives.append(live)
        self._is_fresh = True

    def _begin(self, live: torch.Tensor | None) -> None:
        """With a tensor, or a shape, that was not there before."""
        self._live, self._copy, self._version, self._is_fresh = live, None, _UNKNOWN, True
        if live is None or live is _GONE:
            return
        self._copy = live.detach().clone()
        is_large = live.numel() * live.element_size() > _SMALL
        if is_large and self._shows_writes and not live.is_inference():
            self._version = live._version  # noqa: SLF001

    def _is_still(self, live: torch.Tensor) -> bool:
        """Is the copy what the buffer holds? As its version says, which is looked into now and then."""
        if live.layout is not torch.strided:
            return True
        self._kept += 1
        self._is_fresh = self._kept <= _COMPARED or self._kept & (self._kept - 1) == 0
        if self._is_fresh and not self._equals(live):
            self._shows_writes = False
        return self._shows_writes

    def _equals(self, live: torch.Tensor) -> bool:
        """By bits, whatever the type; one that lies in pieces is not compared, and so copied every time."""
        copy = self._copy
        if copy is None or not (live.is_contiguous() and copy.is_contiguous()):
            return False
        return torch.equal(live.view(torch.uint8), copy.view(torch.uint8))

    def put_back(self) -> None:
        """The tensor that was there is there again, with the values it had."""
        live, copy = self._live, self._copy
        if live is _GONE:
            if self._name in self._module._buffers:  # noqa: SLF001
                del self._module._buffers[self._name]  # noqa: SLF001
            return
        if live is not None and copy is not None:
            unseen = live.layout is torch.strided and live._version == self._version != _UNKNOWN  # noqa: SLF001
            if unseen and not self._is_fresh and not self._equals(live):
                # Written unseen, since nobody knows when: what is there is nearer to what was than a copy of long ago.
                self._shows_writes = False
            else:
                live.copy_(copy)
        # A forward pass may also have put another tensor there.
        self._module._buffers[self._name] = live  # noqa: SLF001


class _Registered:
    """Whether any module of the process registered a buffer since somebody looked."""

    def __init__(self) -> None:
        self.since = True

    def note(self, _module: nn.Module, _name: str, _buffer: torch.Tensor | None) -> None:
        """Torch calls it before each."""
        self.since = True


class Aside:
    """The buffers of one model and the generators of its device."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._slots: dict[tuple[nn.Module, str], _Slot] = {}
        self._registered = _Registered()
        weakref.finalize(self, register_module_buffer_registration_hook(self._registered.note).remove)
        self._cuda = device if device.type == "cuda" else None
        self._host_draws = self._device_draws = torch.empty(0, dtype=torch.uint8)

    def keep(self) -> None:
        """Before a forward pass."""
        if self._registered.since:
            self._registered.since = False
            self._slots = {place: self._slots.get(place) or _Slot(*place) for place in self._places()}
        if self._slots:
            copies: list[torch.Tensor] = []
            lives: list[torch.Tensor] = []
            with torch.no_grad():
                for slot in self._slots.values():
                    slot.keep(copies, lives)
                if copies:
                    # In one call: a call each would take most of the time.
                    torch._foreach_copy_(copies, lives)
        # As `torch.get_rng_state()`, which calls this one.
        self._host_draws = torch.default_generator.get_state()
        if self._cuda is not None:
            self._device_draws = torch.cuda.get_rng_state(self._cuda)

    @torch.no_grad()
    def put_back(self) -> None:
        """After it: everything is as it was kept last."""
        for slot in self._slots.values():
            slot.put_back()
        if self._registered.since:
            for module, name in set(self._places()).difference(self._slots):
                delattr(module, name)
        torch.set_rng_state(self._host_draws)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._device_draws, self._cuda)

    def _places(self) -> Iterator[tuple[nn.Module, str]]:
        return ((module, name) for module in self._model.modules() for name in module._buffers.keys())  # noqa: SLF001, SIM118
