"""A slot: a named place in a model, where a seed can germinate, learn, be blended in and stay.

The stage decides what the slot does with its input h (`PATHS`):

* no seed, or GERMINATED: it returns h, the same object. A germinated seed is not in the graph yet.
* TRAINING: it returns a copy of h, bit for bit, with -0.0, inf and NaN. The seed gets h detached, and the gradient of
  the slot's output. The host gets that gradient too, unchanged. Without gradients (validation) the seed does not run.
* BLENDING: h + alpha * (seed(h) - h). At alpha 0 exactly h and at alpha 1 exactly seed(h), even if the other one is not
  finite.
* SHADOWING, PROBATIONARY, FOSSILIZED: seed(h).

A frozen seed computes as in a validation, whatever the mode of the model. So running statistics do not move, and
dropout draws nothing. Gradients flow through it to the host. Its optimizer is not the slot's business.

Promises: the output has the dtype of h. Alpha is on the device of h and in float32, whatever dtype the model is moved
to. It is no parameter and no buffer. A change of alpha does not make torch.compile compile again; a change of the
stage compiles once for each of the four paths. In TRAINING torch's generators are as if the seed had drawn nothing;
generators of Python and NumPy are not watched. Gradients of gradients work in every stage; forward-mode derivatives do
not work in TRAINING.

Limits: if h has gaps in its memory (a slice), TRAINING returns a view of it, and autograd refuses to write to that in
place. If h reaches the loss in two or more ways around the slot, TRAINING may change the order in which torch
adds their gradients. The last bits of the sum may differ then.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn

from tolariad.core.calc.seeds.stages import PLANTED, Stage
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.torch_private.modules import ToldOfMoves, buffers_of, put_buffer

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LOW_PRECISION: Final = (torch.float16, torch.bfloat16)


class Path(enum.IntEnum):
    """The operation of a slot on its input. The compiler guards this number, not the stage."""

    PASS = 0
    LEARN = 1
    BLEND = 2
    GROWN = 3


PATHS: Final[Mapping[Stage, Path]] = MappingProxyType(
    {
        **dict.fromkeys(Stage, Path.PASS),
        Stage.TRAINING: Path.LEARN,
        Stage.BLENDING: Path.BLEND,
        Stage.SHADOWING: Path.GROWN,
        Stage.PROBATIONARY: Path.GROWN,
        Stage.FOSSILIZED: Path.GROWN,
    }
)
# Modules whose forward pass draws nothing. A class can also say so by an attribute `draws_nothing = True`.
_QUIET: Final = frozenset(
    {
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Identity, nn.Sequential),
        *(nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softmax),
    }
)


class SeedSlot(ToldOfMoves):
    """Pass the input on until a seed germinates. Input and output: one floating-point tensor of any shape.

    `stage` changes by `enter` only. `seed` is the module planted here, or None; it is the child named `seed`. `alpha`
    is a float32 tensor without dimensions; `set_alpha` changes it. `layer_depth`: see `slots_of`.
    """

    seed: nn.Module | None

    def __init__(self, name: str) -> None:
        super().__init__()
        if not _NAME.fullmatch(name):
            raise SetupRefused(
                f"seeds: the name of a slot must have 1 to 64 letters, digits, _ or -, which {name!r} has not"
            )
        self.name = name
        self.stage = Stage.DORMANT
        self.layer_depth = 0
        self.alpha = torch.zeros(())
        self.seed = None
        self._alpha = 0.0
        self._path = 0
        self._draws = False
        self._is_frozen = False
        # Of a frozen seed: its buffers, and their values.
        self._kept: tuple[tuple[nn.Module, str, Tensor, Tensor], ...] = ()
        # In a list, because assigning to an attribute of a module takes a microsecond.
        self._seen: list[Any] = [(), None]

    # -- the life of a seed ------------------------------------------------------------------------------------------

    def plant(self, module: nn.Module) -> None:
        """Hold `module` as this slot's seed, in the slot's train or eval mode. The stage does not change.

        Raises SetupRefused if the slot holds a seed already.
        """
        if self.seed is not None:
            raise SetupRefused(f"slot {self.name} holds a seed already, in stage {self.stage.name}; cull that first")
        self.seed = module.train(self.training)
        self._draws = not all(type(one) in _QUIET or getattr(one, "draws_nothing", False) for one in module.modules())

    def clear(self) -> None:
        """Drop the seed, if there is one. The slot is DORMANT."""
        self.enter(Stage.DORMANT)
        self.seed = None
        self._draws = False
        self.freeze(frozen=False)

    def enter(self, stage: Stage) -> None:
        """Set the stage, and alpha to its value at the beginning of it: 1 from SHADOWING on, else 0.

        Any stage may follow any other here, as a restore needs it; the daemon decides which moves are legal. Raises
        SetupRefused if the stage needs a seed and there is none.
        """
        if stage in PLANTED and self.seed is None:
            raise SetupRefused(f"slot {self.name} has no seed, so it cannot enter the stage {Stage(stage).name}")
        self.stage = Stage(stage)
        self._path = int(PATHS[self.stage])
        self.set_alpha(1.0 if self._path == Path.GROWN else 0.0)

    # -- a frozen seed -------------------------------------------------------------------------------------------------

    @property
    def is_frozen(self) -> bool:
        """Whether the seed computes as in a validation all the time, and keeps its buffers."""
        return self._is_frozen

    def freeze(self, *, frozen: bool) -> None:
        """Freeze the seed as it is now, or end that. Its present buffers are those that `hold` puts back."""
        was, seed = self._is_frozen, self.seed
        self._is_frozen = frozen = frozen and seed is not None
        self._kept = ()
        if seed is None:
            return
        if frozen:
            seed.eval()
            self._kept = tuple(
                (module, name, live, live.detach().clone())
                for module in seed.modules()
                for name, live in buffers_of(module).items()
                if live is not None
            )
        elif was:
            seed.train(self.training)

    @torch.no_grad()
    def hold(self) -> None:
        """Put the buffers of a frozen seed back: a module may write to them in eval mode too."""
        for module, name, live, kept in self._kept:
            put_buffer(module, name, live)  # it may have put another tensor there
            # Not through autograd's version of the tensor: a graph that is kept over a step stays valid.
            live.data.copy_(kept)

    def train(self, mode: bool = True) -> SeedSlot:  # noqa: FBT001, FBT002 - torch's signature
        """Set the mode of the slot and of its seed, unless that is frozen."""
        super().train(mode)
        if self._is_frozen and self.seed is not None:
            self.seed.eval()
        return self

    @contextmanager
    def bypassed(self) -> Iterator[None]:
        """In the block the slot returns its input, as without a seed."""
        path, self._path = self._path, int(Path.PASS)
        try:
            yield
        finally:
            self._path = path

    def set_alpha(self, value: float) -> None:
        """Set the share of the seed in the output, from 0 to 1. Waits for no device. Raises ValueError."""
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"slot {self.name}: alpha must be from 0 to 1, not {value!r}")
        self._alpha = float(value)
        self.alpha.fill_(self._alpha)

    def set_layer_depth(self, depth: int) -> None:
        """Set how many layers of the host come before the slot; `slots_of` counts them."""
        self.layer_depth = depth

    @property
    def alpha_value(self) -> float:
        """Alpha as a number, without waiting for a device."""
        return self._alpha

    # -- the input -----------------------------------------------------------------------------------------------------

    @property
    def last_input(self) -> tuple[tuple[int, ...], torch.dtype] | None:
        """Shape of the last input, and the dtype that parameters for it should have. None before the first one."""
        shape, dtype = self._seen
        return None if dtype is None else (tuple(int(size) for size in shape), dtype)

    def example(self, shape: tuple[int, ...] = (), dtype: str = "") -> Tensor:
        """Return zeros like the last input, or of the given shape and dtype (such as `float32`), on the slot's device.

        Under autocast the dtype is float32, because a seed's parameters should be in float32 there. Raises
        SetupRefused if neither is known.
        """
        seen = self.last_input
        if not shape and seen is None:
            raise SetupRefused(
                f"slot {self.name} has not seen an input yet, so no seed can be built for it. Wait for the first step. "
                "If this stays, the model never calls the module at this place; choose another"
            )
        sizes, kind = (shape, torch.float32) if seen is None or shape else seen
        named = getattr(torch, dtype.removeprefix("torch."), None) if dtype else kind
        if not isinstance(named, torch.dtype) or not named.is_floating_point:
            raise SetupRefused(f"slot {self.name}: {dtype!r} is not a floating-point dtype of torch")
        return torch.zeros(sizes, dtype=named, device=self.alpha.device)

    # -- the graph -----------------------------------------------------------------------------------------------------

    def forward(self, h: Tensor) -> Tensor:
        """Return `h`, or what the stage makes of it. Raises RuntimeError if the seed changes its shape."""
        seen = self._seen
        seen[0] = h.shape
        seen[1] = dtype = h.dtype
        if dtype in _LOW_PRECISION and torch.is_autocast_enabled(h.device.type):
            seen[1] = torch.float32
        path = self._path
        if path == 0:
            return h
        if path == 1:
            return self._learn(h)
        grown = self._grown(h)
        return grown if path == 3 else self._blend(h, grown)

    def _learn(self, h: Tensor) -> Tensor:
        # Without gradients nothing is learned. The first pass of a reentrant checkpoint ends here, too.
        if not torch.is_grad_enabled():
            return h
        inner = h.detach()  # safety: seed-sends-no-gradient
        if not self._draws:
            return _straight_through(h, self._grown(inner))
        # The host must draw the same numbers as without the seed.
        host = torch.get_rng_state()
        device = torch.cuda.get_rng_state(h.device) if h.is_cuda else None
        grown = self._grown(inner)
        torch.set_rng_state(host)  # safety: seed-takes-no-draws
        if device is not None:
            torch.cuda.set_rng_state(device, h.device)
        return _straight_through(h, grown)

    def _blend(self, h: Tensor, grown: Tensor) -> Tensor:
        # A copy, because autograd keeps it: a retained graph must survive the next `set_alpha`.
        alpha = self.alpha.to(h.device, copy=True)
        mixed = h + alpha * (grown - h)
        return torch.where(alpha >= 1, grown, torch.where(alpha > 0, mixed, h))

    def _grown(self, h: Tensor) -> Tensor:
        seed = self.seed
        if seed is None:
            raise RuntimeError(f"slot {self.name} is in stage {self.stage.name} without a seed")
        if self._is_frozen and seed.training:
            # Code may set the mode of each module by itself.
            seed.eval()
        out: Tensor = seed(h)
        if out.shape != h.shape:
            raise RuntimeError(
                f"the seed in slot {self.name} returned shape {tuple(out.shape)} for an input of shape "
                f"{tuple(h.shape)}; a seed must keep the shape of every input"
            )
        return out.to(h.dtype)

    # -- the module ----------------------------------------------------------------------------------------------------

    def moved(self, to: Callable[[Tensor], Tensor]) -> None:
        """Move alpha to the device that the parameters move to. It stays in float32 and keeps its value."""
        device = to(torch.zeros((), device=self.alpha.device)).device
        if device != self.alpha.device:
            self.alpha = torch.full((), self._alpha, device=device)
        if self._is_frozen:
            self.freeze(frozen=True)  # the buffers may be other tensors now

    def extra_repr(self) -> str:
        """Return name and stage, and alpha while it is blended in."""
        return f"{self.name}, {self.stage.name}" + (f", alpha={self._alpha:g}" if self._path == Path.BLEND else "")


class _StraightThrough(torch.autograd.Function):
    """Return the bits of `h`, and pass the gradient to `h` and to `grown`."""

    generate_vmap_rule = True  # for torch.func

    @staticmethod
    def forward(h: Tensor, grown: Tensor) -> Tensor:  # noqa: ARG004 - only its gradient counts
        """Copy `h`: the host may write to the output in place, and the seed has saved the input."""
        out = h.clone()
        # Other strides could make the next layer choose another kernel, with other bits.
        return out if out.stride() == h.stride() else h.view_as(h)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Nothing is saved."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradient twice."""
        (gradient,) = gradients
        to_host, to_seed = ctx.needs_input_grad
        return gradient if to_host else None, gradient if to_seed else None


def _straight_through(h: Tensor, grown: Tensor) -> Tensor:
    out: Tensor = _StraightThrough.apply(h, grown)  # type: ignore[no-untyped-call]
    return out
