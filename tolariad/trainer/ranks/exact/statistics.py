"""Running statistics of normalisation layers, gathered by leaf.

Each leaf's forward pass moves the running mean and variance of a BatchNorm towards those of its batch. A rank sees its
own leaves only, so its running statistics would depend on the number of ranks. Here every leaf puts the statistics of
its batch into the mapping, and each rank applies those of all leaves in their order, after the step. The layer's own
code computes them: with momentum 1 it stores the batch's mean and unbiased variance.

Every other buffer of the state that a forward pass changes is refused: how often a rank changes it depends on the
number of ranks. A buffer that `state_dict()` leaves out is a cache, and is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.ranks.exact.layout import Layout
from tolariad.trainer.torch_private.modules import INSTANCE_NORMS, NORMS, buffers_of, transient_names
from tolariad.trainer.torch_private.tensors import version_of

# A class with a forward of its own may update its statistics in any way.
_FORWARDS: Final = (nn.BatchNorm1d.forward, nn.InstanceNorm1d.forward)
_RUNNING: Final = ("running_mean", "running_var")
_HELD: Final = (*_RUNNING, "num_batches_tracked")


class RunningStatistics:
    """The statistics of all such layers of a model. `layout`: their places in the mapping, for one leaf."""

    def __init__(self, model: nn.Module) -> None:
        """Raises SetupRefused if the model has a SyncBatchNorm: it adds over ranks in an order of its own."""
        named = list(model.named_modules())
        for name, module in named:
            if isinstance(module, nn.SyncBatchNorm):
                raise SetupRefused(
                    f"{name} is a SyncBatchNorm, whose statistics depend on the number of ranks: with exact sums use "
                    "BatchNorm, whose running statistics are gathered by leaf"
                )
        self._layers = [_Layer(name, one) for name, one in named if _has_statistics(one)]
        self.layout = Layout(
            (f"{one.name}.{key}", getattr(one.module, key)) for one in self._layers for key in _RUNNING
        )
        held = {(id(one.module), key) for one in self._layers for key in _HELD}
        self._others = [
            (f"{name}.{key}".lstrip("."), module, key)
            for name, module in named
            for key in sorted(set(buffers_of(module).keys()) - set(transient_names(module)))
            if (id(module), key) not in held
        ]
        self._marks: list[tuple[int, int]] = []
        self._hooks = [hook for one in self._layers for hook in one.hooks()]

    def attach(self, updated: torch.Tensor, statistics: torch.Tensor) -> None:
        """Keep what leaves find there. `updated`, `statistics`: as GradientMemory has them."""
        self._updated = updated
        self._views = [self.layout.views(one) for one in statistics]

    def detach(self) -> None:
        """Leave the layers as they were."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @contextmanager
    def of(self, leaf: int) -> Iterator[None]:
        """Keep the statistics of the forward passes in the block for this leaf. Raises SetupRefused as said above."""
        views, updated = self._views[leaf], self._updated[leaf]
        for number, layer in enumerate(self._layers):
            layer.begin((views[2 * number], views[2 * number + 1]))
        self._marks = self._seen()
        try:
            yield
        finally:
            for number, layer in enumerate(self._layers):
                updated[2 * number] = layer.end()
        if self._others and (now := self._seen()) != self._marks:
            changed = next(one[0] for one, a, b in zip(self._others, self._marks, now, strict=True) if a != b)
            raise SetupRefused(
                f"the forward pass changes the buffer {changed}, so its value would depend on the number of ranks. "
                "Train without exact sums, or register it with persistent=False if it is a cache"
            )

    def apply(self, leaves: int) -> None:
        """Move the running statistics of this rank by those of so many leaves, in their order."""
        for updated, views in zip(self._updated[:leaves], self._views[:leaves], strict=True):
            for number, layer in enumerate(self._layers):
                if updated[2 * number]:
                    layer.move(views[2 * number], views[2 * number + 1])

    def _seen(self) -> list[tuple[int, int]]:
        """Return which tensor each other buffer is, and how often it was written to."""
        buffers = [buffers_of(module).get(key) for _, module, key in self._others]
        return [(id(one), 0 if one is None else version_of(one)) for one in buffers]


class _Layer:
    """One layer with running statistics. `begin` and `end` enclose a leaf; forward passes outside are left alone."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.module = name, module
        self._target: tuple[torch.Tensor, torch.Tensor] | None = None
        self._is_caught = False
        self._held: tuple[Any, ...] | None = None

    def hooks(self) -> tuple[Any, Any]:
        """Return the handles of the two hooks that this registers."""
        before = self.module.register_forward_pre_hook(self._before)
        return before, self.module.register_forward_hook(self._after, always_call=True)

    def begin(self, target: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Put mean and variance of the next forward pass there."""
        self._target, self._is_caught = target, False

    def end(self) -> bool:
        """Return whether there was one."""
        self._target = None
        return self._is_caught

    def move(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics by those of one batch, as the layer does."""
        module = self.module
        factor = module.momentum
        if not isinstance(module, INSTANCE_NORMS) and module.num_batches_tracked is not None:
            module.num_batches_tracked.add_(1)
            factor = 1.0 / float(module.num_batches_tracked) if factor is None else factor
        for running, found in ((module.running_mean, mean), (module.running_var, variance)):
            running.mul_(1.0 - factor).add_(found.to(running.device), alpha=factor)

    def _before(self, *_: Any) -> None:
        module = self.module
        if self._target is None or not module.training or not _moves(module):
            return
        if self._is_caught:
            raise SetupRefused(
                f"{self.name} is called twice in one micro-batch, so its running statistics cannot be gathered by "
                "leaf. Train without exact sums; if checkpointing recomputes it, leave it out of that"
            )
        self._is_caught = True
        self._held = (module.running_mean, module.running_var, module.num_batches_tracked, module.momentum)
        module.running_mean, module.running_var = torch.zeros_like(self._held[0]), torch.zeros_like(self._held[1])
        module.num_batches_tracked, module.momentum = torch.zeros_like(self._held[2]), 1.0

    def _after(self, *_: Any) -> None:
        if self._held is None:
            return
        module, held, self._held = self.module, self._held, None
        if self._target is not None:
            self._target[0].copy_(module.running_mean)
            self._target[1].copy_(module.running_var)
        module.running_mean, module.running_var, module.num_batches_tracked, module.momentum = held


def _has_statistics(module: nn.Module) -> bool:
    """Return whether a layer keeps running statistics in torch's own way."""
    if not isinstance(module, NORMS) or type(module).forward not in _FORWARDS or "forward" in module.__dict__:
        return False
    return module.running_mean is not None and module.running_var is not None


def _moves(module: Any) -> bool:
    """Return whether a forward pass in training moves the statistics. Without a momentum those of InstanceNorm stay."""
    return module.track_running_stats and (module.momentum is not None or not isinstance(module, INSTANCE_NORMS))
