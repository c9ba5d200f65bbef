"""Digests of the tensors of a run: parameters, buffers, what the optimizers keep, averages.

On the CPU a tensor's digest is XXH3 of its bytes. On a device it is computed there: a sum, modulo 2**64, over words
that were mixed with their places. A sum without places would miss two values that were exchanged, and an exclusive or
would miss the same bit flipped in two values.

Promises: equal tensors have equal digests, whatever their strides. No digest waits for a device: all of them come to
the host in one transfer.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
import xxhash

from tolariad.core import messages as m
from tolariad.trainer.checkpoints.tensors import raw_bytes, without_duplicates
from tolariad.trainer.sharded import is_sharded
from tolariad.trainer.step.measured import Transfer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tolariad.trainer.setup import Setup

_WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
# Those that numpy has, but for complex ones, whose values may be conjugated when they are read.
_PLAIN: Final = frozenset({torch.float32, torch.float64, torch.float16, torch.int64, torch.int32})
_ORDINARY: Final = frozenset({torch.Tensor, torch.nn.Parameter})
# Odd numbers with well spread bits: those of SplitMix64, as signed 64-bit integers.
_PLACE: Final = -0x61C8864680B583EB
_FIRST: Final = -0x40A7B892E31B1A47
_SECOND: Final = -0x6B2FB644ECCEEE15
# So many elements at once: a device needs some ten times their bytes for intermediate values.
_PIECE: Final = 1 << 22
_WHOLE: Final = 2**64 - 1


class Digests(NamedTuple):
    """The digests of named tensors, and one over all."""

    names: tuple[str, ...]
    tensors: tuple[int, ...]
    whole: int
    method: m.DigestMethod


class Digesting(NamedTuple):
    """Digests that may be in flight from a device. `host`: those that are not, by name."""

    names: tuple[str, ...]
    host: dict[str, int]
    on_device: tuple[tuple[tuple[str, ...], Transfer], ...]

    def read(self) -> Digests:
        """Wait for those in flight, and return all."""
        found = dict(self.host) if self.on_device else self.host
        for names, transfer in self.on_device:
            found |= {name: int(value) & _WHOLE for name, value in zip(names, transfer.read(), strict=True)}
        each = tuple(found[name] for name in self.names)
        whole = xxhash.xxh3_64_intdigest(struct.pack(f"<{len(each)}Q", *each))
        return Digests(self.names, each, whole, m.DigestMethod.MIXED if self.on_device else m.DigestMethod.XXH3)


def tensors_of(setup: Setup) -> dict[str, torch.Tensor]:
    """Return the tensors of a run by name, each once. Those of which each process holds a part are left out."""
    # Made anew for each digest: growth, masks and restores replace tensors, and a stale one would hide a difference.
    model = setup.model
    found: dict[str, torch.Tensor] = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in found.items()}
    found.update(model.named_buffers())
    for owner in setup.owners:
        of = "" if len(setup.owners) == 1 else f" ({owner.name})"
        # By identity: a tensor's hash is a call of Python.
        states = {id(parameter): state for parameter, state in owner.optimizer.state.items()}
        # In the order of the groups: that of `state` is another one after a restore.
        for group in owner.optimizer.param_groups:
            for parameter in group["params"]:
                state = states.get(id(parameter)) or {}
                name = names.get(id(parameter), "?")
                found.update({f"{key} of {name}{of}": state[key] for key in sorted(state, key=str)})
    if setup.average is not None:
        found.update({f"average of {name}": tensor for name, tensor in setup.average.tensors.items()})
    tensors = {name: tensor.detach() if tensor.requires_grad else tensor for name, tensor in _digestible(found)}
    # Tied tensors begin at one address. To ask for it takes a tenth of the time of looking for them.
    is_tied = len({tensor.data_ptr() for tensor in tensors.values()}) < len(tensors)
    return without_duplicates(tensors)[0] if is_tied else tensors


def _digestible(found: Mapping[str, object]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the dense tensors that have values and are whole."""
    for name, value in found.items():
        # Only a tensor of another class can be sharded.
        if not isinstance(value, torch.Tensor) or (type(value) not in _ORDINARY and is_sharded(value)):
            continue
        if value.layout is torch.strided and not value.is_quantized and not value.is_meta:
            yield name, value


def digesting(tensors: Mapping[str, torch.Tensor]) -> Digesting:
    """Begin to compute the digests of these tensors."""
    host: dict[str, int] = {}
    devices: dict[torch.device, tuple[list[str], list[torch.Tensor]]] = {}
    for name, tensor in tensors.items():
        if tensor.is_cpu:
            host[name] = _of_host(tensor)
        else:
            names, sums = devices.setdefault(tensor.device, ([], []))
            names.append(name)
            sums.append(mixed(tensor))
    in_flight = tuple((tuple(names), Transfer(torch.stack(sums))) for names, sums in devices.values())
    return Digesting(tuple(tensors), host, in_flight)


def _of_host(tensor: torch.Tensor) -> int:
    # numpy's view takes a quarter of the time of `raw_bytes`, which counts where a model has many small tensors.
    if tensor.dtype in _PLAIN and tensor.is_contiguous() and not tensor.is_neg():
        return xxhash.xxh3_64_intdigest(tensor.numpy().data)
    return xxhash.xxh3_64_intdigest(raw_bytes(tensor))


@torch.no_grad()
def mixed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the digest of a tensor where it is: an int64 of no dimension. Nothing waits for it."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    flat = tensor.contiguous().reshape(-1)
    # A complex double has no integer of its size.
    words = flat.view(_WORDS.get(flat.element_size(), torch.int64))
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for first in range(0, words.numel(), _PIECE):
        piece = words[first : first + _PIECE]
        places = torch.arange(first + 1, first + 1 + piece.numel(), dtype=torch.int64, device=tensor.device)
        # Integers wrap around, and their sum is the same in every order. Nothing is written to the words of the run.
        mixing = places.mul_(_PLACE).add_(piece)
        mixing.bitwise_xor_(mixing >> 30).mul_(_FIRST)
        mixing.bitwise_xor_(mixing >> 27).mul_(_SECOND)
        mixing.bitwise_xor_(mixing >> 31)
        total = total + mixing.sum()
    return total
