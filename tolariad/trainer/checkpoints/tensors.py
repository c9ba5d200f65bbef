"""Convert tensors to the bytes of a safetensors file, and back.

Promises: equal tensors give equal files. A tensor with two names is stored once.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from tolariad.storage.tensor_file import Tensor, TensorEntry, parse
from tolariad.trainer.sharded import SHARDED, is_sharded, local_of

DTYPES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
BY_NAME: Final = {name: dtype for dtype, name in DTYPES.items()}


def check_tensor(tensor: torch.Tensor) -> None:
    """Raise ValueError if a tensor cannot be stored in a safetensors file."""
    if is_sharded(tensor):
        raise ValueError(f"it {SHARDED}")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError(f"a tensor of layout {tensor.layout} cannot be written to a checkpoint; make it dense")
    if tensor.device.type == "meta" or torch.nn.parameter.is_lazy(tensor):
        raise ValueError("a tensor without values cannot be written to a checkpoint; initialise it before training")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"a tensor of dtype {tensor.dtype} cannot be written to a checkpoint")


def place_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return a key that is equal for two tensors if they are the same view of the same memory."""
    # A DTensor has no address of its own: all of one shape would be taken for tied ones.
    tensor = local_of(tensor)
    seen_as = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), *seen_as)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors of one dtype hold the same values, bit for bit: NaN equals NaN."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(a.element_size(), torch.uint8)
    return torch.equal(a.contiguous().reshape(-1).view(whole), b.contiguous().reshape(-1).view(whole))


def overlap(tensors: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> tuple[str, str] | None:
    """Return one of `tensors` that shares memory with another one or with one of `others`, and that one; else None.

    Only tensors without gaps in memory are compared.
    """
    filled = (
        (str(tensor.device), tensor.data_ptr(), tensor.nbytes, name)
        for name, tensor in (*others.items(), *tensors.items())
        if tensor.numel() and (tensor.is_contiguous() or order_in_memory(tensor) is not None)
    )
    before, end, holder = "", 0, ""
    for device, first, size, name in sorted(filled):
        if device != before:
            before, end = device, 0
        if first < end and (name in tensors or holder in tensors):
            return (name, holder) if name in tensors else (holder, name)
        if first + size > end:
            end, holder = first + size, name
    return None


def without_duplicates(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return each tensor under its first name, and for its other names the name that holds the data."""
    first: dict[tuple[object, ...], str] = {}
    unique: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        holder = first.setdefault(place_of(tensor), name) if tensor.numel() else name
        if holder == name:
            unique[name] = tensor
        else:
            aliases[name] = holder
    return unique, aliases


def entry_of(name: str, tensor: torch.Tensor) -> TensorEntry:
    """Return a tensor's entry for the header of a file."""
    return TensorEntry(
        name=name,
        dtype=DTYPES[tensor.dtype],
        shape=tuple(tensor.shape),
        size=tensor.numel() * tensor.element_size(),
        element_size=tensor.element_size(),
    )


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the tensor's values in row-major order: a view if it is contiguous on the CPU, else a copy."""
    host = tensor.detach().to("cpu").contiguous()
    if host.is_conj() or host.is_neg():
        host = host.resolve_conj().resolve_neg()
    flat: Any = host.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def order_in_memory(tensor: torch.Tensor) -> list[int] | None:
    """Return the strides of a tensor that is dense but not row-major; None for any other."""
    if tensor.is_contiguous():
        return None
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return None
        expected *= size
    return list(tensor.stride())


def copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy `source` into `target`, which has the same shape. An expanded dimension of the target is written once."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
    target[once].copy_(source[once])


def read_tensors(data: memoryview) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file as views of `data`. Raises ValueError if it is not such a file."""
    return {name: _view(tensor) for name, tensor in parse(data).items()}


def _view(tensor: Tensor) -> torch.Tensor:
    entry = tensor.entry
    dtype = BY_NAME.get(entry.dtype)
    if dtype is None:
        raise ValueError(f"{entry.name} has dtype {entry.dtype}, which this version does not know")
    if math.prod(entry.shape) * dtype.itemsize != entry.size:
        raise ValueError(f"{entry.name} of shape {entry.shape} in {entry.dtype} cannot have {entry.size} bytes")
    if not entry.size:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(tensor.data, dtype=dtype).view(entry.shape)
