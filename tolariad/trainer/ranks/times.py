"""How long a rank computes and how long it waits for others: which one makes the others slow.

A step of a rank begins when rank 0 lets it leave the point before. Until its own part of the last backward pass is done
it computes, data and forward pass among it; from then on it waits, in DDP's collective and for the others' numbers. So
it does while DDP sends buffers in a forward pass. The wait for the recorder comes last, and counts as neither.

Every step is timed at first, later about one in sixteen; none after a re-run, a skip or a pause. On a GPU
the times are those of this thread, which waits for the device when it reads the step's numbers.

Before each of these waits a rank makes a mark in the group page, timed or not: it shows which rank the others wait for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from tolariad.core import messages as m
from tolariad.trainer.torch_private.ddp import around_buffers, begun_collectives
from tolariad.trainer.torch_private.graphs import at_end_of_backward

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tolariad.channel.group_page import GroupPage

# As the stopwatch of a trainer: every step of so many, then a share of them that no period of the steps can hide.
_FIRST_STEPS: Final = 50
_TIMED: Final = 1 / 16
_GOLDEN: Final = 0.6180339887498949
# Rank 0 reports within an epoch after so long; at first after the second time.
_REPORTED_NS: Final = 30 * 10**9
_FIRST_NS: Final = 2 * 10**9


class RankClock:
    """The times of one rank. Those of all lie in the group page. `is_on`: the step in progress is timed."""

    def __init__(self, page: GroupPage, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._page, self._clock = page, clock
        self._model: Any = None
        self.is_on = True
        self._compute = self._wait = self._steps = 0
        # Of the step in progress: when it began, 0 if that is not known, and how long it has waited in backward passes.
        self._left = self._waited = 0
        # What rank 0 has reported of each rank, and when.
        self._reported = [(0, 0, 0)] * page.ranks
        self._told = clock() - _REPORTED_NS + _FIRST_NS

    def watch(self, model: Any) -> None:
        """Take the time in which a model in DistributedDataParallel sends buffers, and waits for that, for wait.

        Show others how many collectives it has begun: within a backward pass there are no marks.
        """
        self._model = model
        around_buffers(model, self.of_wait)
        if (begun := begun_collectives(model)) is not None:
            self._page.count_by(begun)

    def of_wait(self, call: Callable[[], None]) -> None:
        """Make a call that waits for other ranks."""
        self._page.mark()
        if not self.is_on:
            call()
            return
        begun = self._clock()
        call()
        self._waited += self._clock() - begun

    def left(self) -> None:
        """This rank leaves a point: the next step begins."""
        self._left = self._clock()

    def begins_backward(self) -> None:
        """A backward pass begins. Unless DDP is under `no_sync` this rank waits in it for the others."""
        if self._model is not None and self._model.require_backward_grad_sync:
            self._page.mark()

    def of_backward(self, loss: torch.Tensor, run: Callable[[], Any]) -> Any:
        """Make a backward pass. Its end, after this rank's own part is done, counts as wait."""
        done: list[int] = []
        # Queued when the pass begins, so it is called before DDP waits for its collectives.
        hook = loss.register_hook(lambda _: at_end_of_backward(lambda: done.append(self._clock())))
        try:
            return run()
        finally:
            hook.remove()
            if done:
                self._waited += self._clock() - done[0]

    def computed(self) -> int:
        """This rank has its numbers of the step. Return the time, for `met`."""
        return self._clock()

    def met(self, since: int, step: int, samples: int) -> None:
        """The numbers of all are there. `since`: what `computed` returned. `samples`: those of this rank's step."""
        if self._left:
            self._steps += 1
            self._compute += since - self._left - self._waited
            self._wait += self._waited + self._clock() - since
            self._page.write_times((self._compute, self._wait, self._steps, samples))
        self.over(step)

    def over(self, step: int) -> None:
        """Step `step` is over, or was not one to be timed."""
        self._left = self._waited = 0
        self.is_on = step < _FIRST_STEPS or (step + 1) * _GOLDEN % 1.0 < _TIMED

    @property
    def is_due(self) -> bool:
        """Whether rank 0 has reported nothing for long."""
        return self._clock() - self._told > _REPORTED_NS

    def taken(self) -> tuple[m.RankTimes, ...]:
        """Return the times of all ranks since the last call; empty if none was timed since. Rank 0 calls this."""
        if self._steps == self._reported[0][2]:
            return ()
        self._told, found = self._clock(), []
        for rank, before in enumerate(self._reported):
            now = self._page.times(rank)
            self._reported[rank] = (now.compute, now.wait, now.steps)
            found.append(
                m.RankTimes(
                    rank=rank,
                    pid=now.pid,
                    steps=max(0, now.steps - before[2]),
                    compute_s=max(0, now.compute - before[0]) / 1e9,
                    wait_s=max(0, now.wait - before[1]) / 1e9,
                    batch=now.samples,
                )
            )
        return tuple(found)


def samples_of(batch: Any) -> int:
    """Return how many samples a batch has: the length of its first tensor; 0 if it has none."""
    while not hasattr(batch, "shape"):
        if isinstance(batch, dict):
            batch = tuple(batch.values())
        if not isinstance(batch, list | tuple) or not batch:
            return 0
        batch = batch[0]
    return int(batch.shape[0]) if batch.shape else 0
