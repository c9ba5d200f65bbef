"""The steps of a loop whose gradients are exact sums (docs/exact-sums.md): a rank makes its leaves of each step.

A leaf is a micro-batch of the step, with its number among all of them. Each rank takes a block of neighbouring ones,
and the loop sees only these. After a rank's last leaf `run.step` adds up the leaves of all, and makes the update.

Promises: losses and gradients of a step, and what it draws, do not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.library.loop_task import LoopMisused
from tolariad.library.own_step import LoopStep
from tolariad.trainer.data.digest import digest_of
from tolariad.trainer.ranks.exact import ExactSum
from tolariad.trainer.ranks.exact.order import block as block_of
from tolariad.trainer.ranks.leaf_steps import take_told
from tolariad.trainer.step.gradients import has_gradients, numbers_of
from tolariad.trainer.step.metrics import on_host

if TYPE_CHECKING:
    from torch import Tensor

    from tolariad.trainer.loop import Trainer

_PAGE: Final = "docs/exact-sums.md"


class LeafStep(LoopStep):
    """The steps that a loop makes with one trainer, each from leaves."""

    def __init__(self, trainer: Trainer, sums: ExactSum) -> None:
        super().__init__(trainer)
        self._sums = sums
        # Of the step in progress: the leaves of this rank that are to come, and what ends with a leaf and with the sum.
        self._left: list[int] = []
        self._digest = 0
        self._leaf, self._sum = ExitStack(), ExitStack()

    def length(self, batches: int) -> int:
        """Return how many of the next batches of an epoch are this rank's."""
        place, leaves = self._setup.place, self._setup.settings.accumulate
        whole, rest = divmod(batches, leaves)
        return whole * len(block_of(leaves, place.ranks, place.rank)) + len(block_of(rest, place.ranks, place.rank))

    def _yielded(self, group: tuple[Any, ...], first: int) -> Iterator[tuple[int, Any]]:
        """Yield this rank's leaves. In a step that has none for it, take part in the sum all the same."""
        step = self._stepper.position.step + 1
        with self._sum, self._leaf:
            block = self._sum.enter_context(self._sums.step(step, len(group)))
            self._left = list(block)
            for leaf in block:
                # Before the loop can change it.
                self._digest = digest_of((group[leaf],))
                self._leaf.enter_context(self._sums.leaf(leaf))
                yield first + leaf, group[leaf]
            if not block:
                self._finish(self._stepper.finish, self._numbers())
                self._watch.take_back()

    def _take(self, loss: Any, metrics: Mapping[str, float | Tensor]) -> None:
        """Take the gradients and the loss of a leaf."""
        if metrics:
            self._sums.tell(self._left[0], on_host(metrics))
        if has_gradients(self._setup.owners):
            raise LoopMisused(
                "gradients were there before run.step(loss). With exact sums it makes the backward pass: call it "
                f"instead of loss.backward(), or drop them by optimizer.zero_grad() ({_PAGE})"
            )
        found = self._gradients_of(loss)
        self._losses.append(found)
        self._sums.note(self._left.pop(0), found.item(), self._digest)
        self._leaf.close()

    @property
    def _has_all(self) -> bool:
        """Whether that was the last leaf of this rank."""
        return not self._left

    def _numbers(self) -> Any:
        """Add up the leaves of all ranks, and return the numbers of the step."""
        self._stepper.of_sum(self._sum.close)
        take_told(self._setup, self._sums)
        self._stepper.of_leaves([int(digest) for _, digest in self._sums.numbers])
        device = self._setup.device
        losses = [torch.tensor(loss, dtype=torch.float64, device=device) for loss, _ in self._sums.numbers]
        return numbers_of(self._setup, losses, self._stepper.position.step + 1)

    def update(self, *_: Any, **more: Any) -> None:
        """Refuse an update of the loop's own."""
        what = "run.update()" if more.get("closure") is None else "a closure"
        raise LoopMisused(f"{what} makes its update at once, and exact sums make one from all leaves ({_PAGE})")
