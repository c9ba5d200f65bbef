"""Back up the state that a forward pass changes, besides gradients, so that a skipped step leaves no trace.

Promises: after `put_back`, every buffer and torch's generators are, bit for bit, as they were at `keep`. So a run that
skipped a batch continues like a run that never had it. Draws from Python's and NumPy's generators are not undone
(decision 0013). A large buffer that is never written is copied once, not at every step. One exception: a large buffer
that is first written during a run, without a change of its version, may keep what one skipped pass wrote. From then on
it is copied at every step.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.process.released import at_end
from tolariad.trainer.torch_private import lists, modules
from tolariad.trainer.torch_private.tensors import UNKNOWN, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# A write changes a tensor's version, unless it bypasses autograd. Running statistics bypass it, and so do modules that
# write through `.data`, such as codebooks with moving averages.
# A buffer of at most this many bytes is copied at every step: checking its version would save nothing.
_SMALL: Final = 64 * 1024
# A larger one is compared with its copy this many times at the beginning, and later at every power of two.
_COMPARED: Final = 16
# Stands for a buffer that no longer exists.
_GONE: Final = torch.empty(0)


class _Slot:
    """One buffer of one module, with its copy."""

    __slots__ = ("_copy", "_is_fresh", "_kept", "_live", "_module", "_name", "_shows_writes", "_version")

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module = module
        self._name = name
        # A scripted module may be a norm, or contain one, which writes without a change of version.
        self._shows_writes = not isinstance(module, (*modules.NORMS, torch.jit.ScriptModule))
        self._live: torch.Tensor | None = None
        self._copy: torch.Tensor | None = None
        self._version = UNKNOWN
        self._kept = 0
        self._is_fresh = False

    def keep(self, copies: list[torch.Tensor], lives: list[torch.Tensor]) -> None:
        """Append copy and buffer to the lists, unless the buffer has not changed since it was copied."""
        # In a scripted module this is not a dict: it has no `get` and no `pop`, and cannot be iterated over.
        buffers = modules.buffers_of(self._module)
        live = buffers[self._name] if self._name in buffers else _GONE  # noqa: SIM401
        copy = self._copy
        if live is not self._live or copy is None or live is None or live.numel() != copy.numel():
            self._begin(live)
            return
        if self._version != UNKNOWN:
            version = version_of(live)
            if version == self._version and self._is_still(live):
                return
            self._version = version if self._shows_writes else UNKNOWN
        copies.append(copy)
        lives.append(live)
        self._is_fresh = True

    def _begin(self, live: torch.Tensor | None) -> None:
        """Start again with a new tensor, or a tensor with a new shape."""
        self._live, self._copy, self._version, self._is_fresh = live, None, UNKNOWN, True
        if live is None or live is _GONE:
            return
        self._copy = live.detach().clone()
        is_large = live.numel() * live.element_size() > _SMALL
        if is_large and self._shows_writes and not live.is_inference():
            self._version = version_of(live)

    def _is_still(self, live: torch.Tensor) -> bool:
        """Return whether buffer and copy are equal: by the version, and sometimes by comparing the values."""
        if live.layout is not torch.strided:
            return True
        self._kept += 1
        self._is_fresh = self._kept <= _COMPARED or self._kept & (self._kept - 1) == 0
        if self._is_fresh and not self._equals(live):
            self._shows_writes = False
        return self._shows_writes

    def _equals(self, live: torch.Tensor) -> bool:
        """Compare bit by bit. A tensor that is not contiguous is not compared, and so is copied every time."""
        copy = self._copy
        if copy is None or not (live.is_contiguous() and copy.is_contiguous()):
            return False
        return same_bits(live, copy)

    def put_back(self) -> None:
        """Restore the tensor object and its values."""
        live, copy = self._live, self._copy
        if live is _GONE:
            if self._name in modules.buffers_of(self._module):
                delattr(self._module, self._name)
            return
        if live is not None and copy is not None:
            unseen = live.layout is torch.strided and version_of(live) == self._version != UNKNOWN
            if unseen and not self._is_fresh and not self._equals(live):
                # Written without a change of version, at an unknown time. Keep the live value: the copy is older.
                self._shows_writes = False
            else:
                live.copy_(copy)
        # A forward pass may also have put another tensor there.
        modules.put_buffer(self._module, self._name, live)


class _Registered:
    """Notes whether any module of the process registered a buffer since the last check."""

    def __init__(self) -> None:
        self.since = True

    def note(self, _module: nn.Module, _name: str, _buffer: torch.Tensor | None) -> None:
        """Torch calls this before it registers a buffer."""
        self.since = True


class ForwardStateBackup:
    """A backup of one model's buffers and of its device's generators."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._slots: dict[tuple[nn.Module, str], _Slot] = {}
        self._registered = _Registered()
        handle = register_module_buffer_registration_hook(self._registered.note)
        weakref.finalize(self, handle.remove)
        at_end(handle.remove)
        self._cuda = device if device.type == "cuda" else None
        self._host_draws = self._device_draws = torch.empty(0, dtype=torch.uint8)

    def modules_changed(self) -> None:
        """The model has other modules, or others of their buffers."""
        self._registered.since = True

    def keep(self) -> None:
        """Copy the state. Call it before a forward pass."""
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
                    # One call for all: a call for each would take most of the time.
                    lists.copy_(copies, lives)
        # The same as `torch.get_rng_state()`, without its wrapper.
        self._host_draws = torch.default_generator.get_state()
        if self._cuda is not None:
            self._device_draws = torch.cuda.get_rng_state(self._cuda)

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore the state of the last `keep`."""
        for slot in self._slots.values():
            slot.put_back()
        if self._registered.since:
            for module, name in set(self._places()).difference(self._slots):
                delattr(module, name)
        torch.set_rng_state(self._host_draws)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._device_draws, self._cuda)

    def _places(self) -> Iterator[tuple[nn.Module, str]]:
        return (
            (module, name)
            for module in self._model.modules()
            for name in modules.buffers_of(module).keys()  # noqa: SIM118 - scripted modules have no other way
        )
