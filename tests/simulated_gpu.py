"""A CUDA device that is simulated on the CPU: its tensors say that they are on `cuda:0`, and the host must not look.

What it shows, on a machine without a GPU:

* every wait of the host for the device, by the name of the operation (`waits`). On a real one
  `torch.cuda.set_sync_debug_mode` shows the same. Examples are `item`, `equal`, blocking copies, a boolean index;
* an operation on tensors of both sides, which a real device refuses ("wrong device");
* a result of an asynchronous copy that is read too early: it holds garbage until its event, or the device, was waited
  for. Only pinned memory is copied to asynchronously;
* draws from the wrong generator: the device has its own;
* pinned memory that is not released.

What it cannot show: speed, kernels, memory, streams that run beside each other, several devices. Its numbers are those
of the CPU. `tests/trainer/test_cuda.py` has the tests for a real device.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA = torch.device("cuda:0")
HOST = torch.device("cpu")
MEMORY = 8 << 30
# What these return depends on values, so the host waits for them.
READING = {
    *("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "bincount"),
    *("_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"),
}
# These may have arguments of both sides.
COPIES = {"copy_", "_foreach_copy_", "index", "index_put_", "index_put", "_index_put_impl_"}
# These need all arguments on one side; others accept a number of the host.
STRICT = {"stack", "cat", "mm", "addmm", "bmm", "addmv", "linear", "dot", "mv", "addmm_"}


class OnDevice(torch.Tensor):
    """A tensor of the device. `held` has its values; only this module looks at it."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnDevice:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=HOST,  # a C++ device: autograd has no other one here
        )
        made.held = inner
        return made

    @property
    def device(self) -> torch.device:
        return CUDA

    is_cuda = True
    is_cpu = False

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def is_pinned(self) -> bool:
        return False

    def tolist(self) -> Any:
        gpu().wait("tolist")
        return self.held.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return gpu().run(func, args, kwargs or {})


class Event:
    """`torch.cuda.Event`: it is reached when the copies that were begun before it are done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._copies: list[Any] = []

    def record(self, _: Any = None) -> None:
        self._copies = list(gpu().pending)

    def synchronize(self) -> None:
        gpu().events += 1
        gpu().finish(self._copies)

    def query(self) -> bool:
        return not any(one in gpu().pending for one in self._copies)


class SimulatedGpu(TorchFunctionMode):
    """The device, as a context manager: in its block torch's functions know it. One at a time.

    `waits`: how often the host waited, by operation. `events`: how often it waited for an event. `transfers`: the
    asynchronous copies to the host.
    """

    def __init__(self, patch: Any) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.events = self.transfers = 0
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.pinned: dict[int, int] = {}
        self._generator = torch.Generator().manual_seed(0)
        _patch_torch(patch, self)
        patch.setattr("tests.simulated_gpu._the_one", self)

    # -- the host waits ------------------------------------------------------------------------------------------------

    def wait(self, why: str) -> None:
        """The host waits for everything that the device has to do."""
        self.waits[why] += 1
        self.finish(self.pending)

    def finish(self, copies: list[Any]) -> None:
        """These copies to the host are done."""
        for one in list(copies):
            if any(one is other for other in self.pending):
                host, values = one
                host.copy_(values)
                self.pending = [other for other in self.pending if other is not one]

    def is_pinned(self, host: torch.Tensor) -> bool:
        first = host.data_ptr()
        return any(start <= first < start + size for start, size in self.pinned.items())

    # -- operations ----------------------------------------------------------------------------------------------------

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation with at least one tensor of the device."""
        name = func.overloadpacket.__name__
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        of_host = [one for one in given if not isinstance(one, OnDevice)]
        if name in ("copy_", "_foreach_copy_"):
            return self._copied(name, args, kwargs)
        if name not in COPIES and any(one.dim() or name in STRICT for one in of_host):
            shapes = [tuple(one.shape) for one in of_host]
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, but {shapes} are on cpu")
        indices = [one for one in tree_leaves(args[1:2]) if isinstance(one, torch.Tensor)]
        is_read = name.startswith(("index", "_index")) and any(
            not isinstance(one, OnDevice) or one.dtype is torch.bool for one in indices
        )
        if is_read or name in READING:
            self.wait(name)
        with self._draws() if torch.Tag.nondeterministic_seeded in func.tags else contextlib.nullcontext():
            found = func(*self._inner(args), **self._inner(kwargs))
        if isinstance(found, torch.Tensor | list | tuple):
            found = tree_map_only(torch.Tensor, OnDevice, found)
            return return_and_correct_aliasing(func, args, kwargs, found)
        return found

    def _copied(self, name: str, args: Any, kwargs: Any) -> Any:
        targets, sources = args[:2] if name == "_foreach_copy_" else ([args[0]], [args[1]])
        non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        for target, source in zip(targets, sources, strict=True):
            if isinstance(target, OnDevice):
                if not isinstance(source, OnDevice) and not non_blocking:
                    self.wait("copy to the device")
                target.held.copy_(self._inner(source))
                continue
            if not isinstance(source, OnDevice):
                target.copy_(source)
                continue
            values = source.held.to(target.dtype, copy=True)
            if non_blocking and self.is_pinned(target):
                self.transfers += 1
                # Garbage until it is done.
                target.view(torch.uint8 if target.dim() else target.dtype).fill_(85)
                self.pending.append((target, values))
            else:
                self.wait("copy to the host")
                target.copy_(values)
        return args[0] if name == "copy_" else None

    @staticmethod
    def _inner(value: Any) -> Any:
        return tree_map_only(OnDevice, lambda one: one.held, value)

    @contextlib.contextmanager
    def _draws(self):
        """The device draws from a generator of its own."""
        host = torch.default_generator.get_state()
        torch.default_generator.set_state(self._generator.get_state())
        try:
            yield
        finally:
            self._generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(host)

    # -- functions that name a device ----------------------------------------------------------------------------------

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "to":
            return self._to(func, args, kwargs)
        if name in ("cpu", "cuda") and args:
            return self._to(func, (args[0], HOST if name == "cpu" else CUDA), {})
        if name == "pin_memory" and args:
            made = args[0].clone()
            self.pinned[made.data_ptr()] = made.nbytes
            return made
        if name == "is_pinned":
            return self.is_pinned(args[0])
        if name == "where" and any(type(one) is torch.Tensor for one in args):
            # A number is filled in on the device; a tensor with one element is copied there.
            self.wait(name)
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == "cuda":
            return self._made(func, name, args, kwargs)
        if kwargs.pop("pin_memory", False):
            made = func(*args, **kwargs)
            self.pinned[made.data_ptr()] = max(1, made.nbytes)
            return made
        return func(*args, **kwargs)

    def _made(self, func: Any, name: str, args: Any, kwargs: Any) -> torch.Tensor:
        """A new tensor of the device."""
        kwargs["device"] = HOST
        if args and isinstance(args[0], OnDevice):
            return func(*args, **kwargs)
        if name in ("tensor", "as_tensor"):
            # Torch makes it on the host, and copies.
            self.wait("copy to the device")
        with self._draws():
            return OnDevice(func(*args, **kwargs))

    def _to(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """`Tensor.to`, between the two sides or within one."""
        tensor, *rest = args
        options = dict(kwargs)
        device = options.pop("device", None)
        if rest and isinstance(rest[0], torch.Tensor):
            device, rest[0] = rest[0].device, rest[0].dtype
        elif rest and not isinstance(rest[0], torch.dtype):
            device = rest.pop(0)
        options |= zip(("dtype", "non_blocking", "copy"), rest, strict=False)
        if device is None or (torch.device(device).type == "cuda") is isinstance(tensor, OnDevice):
            return func(tensor, **{name: value for name, value in options.items() if value is not None})
        to = torch.device(device)
        if to.type == "cpu" or not options.get("non_blocking"):
            self.wait(f"copy to the {'host' if to.type == 'cpu' else 'device'}")
        return _Moved.apply(tensor, to, options.get("dtype"))


class _Moved(torch.autograd.Function):
    """A copy to the other side, through which gradients flow back."""

    @staticmethod
    def forward(ctx, tensor, device, dtype):
        ctx.device = tensor.device
        values = tensor.held if isinstance(tensor, OnDevice) else tensor
        values = values.detach().to(dtype or tensor.dtype, copy=True)
        return OnDevice(values) if device.type == "cuda" else values

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(ctx.device), None, None


_the_one: SimulatedGpu | None = None


def gpu() -> SimulatedGpu:
    """The device of the block."""
    assert _the_one is not None, "there is no simulated device outside of its block"
    return _the_one


def _patch_torch(patch: Any, device: SimulatedGpu) -> None:
    """Let `torch.cuda` answer for the simulated device."""

    def register(first: int, size: int, _: int) -> int:
        device.pinned[first] = size
        return 0

    def unregister(first: int) -> int:
        del device.pinned[first]
        return 0

    def set_state(state: torch.Tensor, _: Any = None) -> None:
        device._generator.set_state(state)

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    values = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        # A torch with CUDA holds it against a fork that its parent has asked for devices: it seeds none of them then.
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "set_device": lambda _: None,
        "synchronize": lambda _=None: device.wait("synchronize"),
        "current_stream": lambda _=None: SimpleNamespace(synchronize=lambda: device.wait("stream")),
        "Event": Event,
        "get_rng_state": lambda _=None: device._generator.get_state(),
        "get_rng_state_all": lambda: [device._generator.get_state()],
        "set_rng_state": set_state,
        "set_rng_state_all": lambda states: set_state(*states),
        "manual_seed_all": device._generator.manual_seed,
        "memory_allocated": lambda _=None: 0,
        "mem_get_info": lambda _=None: (MEMORY, MEMORY),
        "get_device_properties": lambda _=None: SimpleNamespace(total_memory=MEMORY),
        "get_device_name": lambda _=None: "simulated",
        "empty_cache": lambda: None,
        "cudart": lambda: runtime,
    }
    for name, value in values.items():
        patch.setattr(torch.cuda, name, value)
    # A module that moves gets new parameters: values of the host cannot become those of the device in place.
    patch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    real = torch.autocast
    patch.setattr(torch, "autocast", lambda kind, **options: real("cpu" if kind == "cuda" else kind, **options))
