"""The exact sum of a step: take the gradients of each leaf, meet the other ranks, add up a share, read the whole.

The order of a step on each rank:

1. For each of its leaves: seed the generators, let the caller compute loss and gradients, take the gradients into the
   mapping. DDP, if there is one, adds nothing up.
2. After its last leaf: meet. Then add up one share of the elements over all leaves, in their order. Meet again, and
   read the sum of all elements into the gradients of the parameters.
3. Apply the statistics of all leaves, and keep their numbers. The next step begins when all ranks have come so far.

A parameter that a leaf does not use has no gradient in it, and adds nothing: not even zero, because -0.0 + 0.0 is 0.0.
A parameter that no leaf uses has no gradient after the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from tolariad.trainer.data.generators import Generator
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.ranks.exact import order
from tolariad.trainer.ranks.exact.draws import seed_leaf
from tolariad.trainer.ranks.exact.fold import add_up
from tolariad.trainer.ranks.exact.layout import Layout
from tolariad.trainer.ranks.exact.meeting import Meeting, RankLost
from tolariad.trainer.ranks.exact.memory import GradientMemory
from tolariad.trainer.ranks.exact.silent import Silent
from tolariad.trainer.ranks.exact.statistics import RunningStatistics

# The settings that must be equal on all ranks, in the order in which they are shown.
_SETTINGS: Final = ("number of ranks", "number of leaves", "number of torch threads", "model", "seed")


class ExactSum:
    """Gives every rank the gradients of one process that accumulates all leaves, bit for bit.

    `block`: the leaves of this rank, a range of numbers from 0. `engine`: what else the bits depend on, in words.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rank: int,
        ranks: int,
        leaves: int,
        mapping: int | None,
        rng_seed: int,
        generators: Sequence[Generator] = (),
        numbers: int = 1,
        limit_s: float = 600.0,
        waiting: Callable[[], None] | None = None,
    ) -> None:
        """Set up the sums of `model`, the caller's module or DDP around it, and meet the other ranks.

        `leaves`: the micro-batches of a step, of all ranks together. `mapping`: the descriptor of a file in memory that
        all ranks have, empty at first, used by one group only; None for one rank. `rng_seed`, `generators`: see
        `seed_leaf`. `numbers`: how many each leaf gives to `note`. `limit_s`: how long to wait for a rank that runs, in
        seconds; one that has ended, gave up or is stopped is named much earlier. `waiting`: called about every
        millisecond of a wait.

        Raises SetupRefused if this model or these settings cannot have exact sums, RankLost if another rank is lost.
        """
        if not 0 <= rank < ranks <= leaves:
            raise SetupRefused(
                f"rank {rank} of {ranks} with {leaves} leaves: each rank needs at least one leaf, so set leaves to "
                f"{ranks} or more"
            )
        if mapping is None and ranks > 1:
            raise SetupRefused(f"{ranks} ranks need one shared mapping: give the descriptor of a memory file")
        self.block = order.block(leaves, ranks, rank)
        self._rank, self._ranks, self._leaves = rank, ranks, leaves
        self._rng_seed, self._held = rng_seed, generators
        self._model = model
        self._silent = Silent(model, rank, ranks) if isinstance(model, DistributedDataParallel) else None
        inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self._frozen = [(name, one) for name, one in inner.named_parameters() if not one.requires_grad]
        # Those of one dtype together: each rank adds up one share of them.
        trained = sorted(
            ((name, checked(name, one)) for name, one in inner.named_parameters() if one.requires_grad),
            key=lambda named: str(named[1].dtype),
        )
        self._names, self._parameters = [name for name, _ in trained], [one for _, one in trained]
        layout = Layout(trained)
        self._statistics = RunningStatistics(inner)
        self._memory = GradientMemory(
            mapping,
            ranks=ranks,
            leaves=leaves,
            count=numbers,
            parameters=layout,
            buffers=self._statistics.layout,
        )
        self._statistics.attach(self._memory.updated, self._memory.statistics)
        self._views = [layout.views(one) for one in self._memory.gradients]
        self._layout, self._pieces = layout, layout.pieces(ranks, rank)
        self._meeting = Meeting(self._memory.lines, rank=rank, ranks=ranks, limit_s=limit_s, waiting=waiting)
        self._step, self._next = 0, self.block.start
        # Which parameters had a gradient in an earlier leaf of this rank in this step.
        self._used: list[bool] = []
        self._numbers: list[list[float]] = []
        self.engine = f"exact sums: chain of {leaves} leaves, {torch.get_num_threads()} threads"
        self._introduce()

    def _introduce(self) -> None:
        """Meet the other ranks, and compare the settings."""
        if not self._meeting.is_fresh:
            raise SetupRefused("the shared mapping was used by another group already: give each group a new one")
        described = repr((self._layout.places, self._statistics.layout.places, self._memory.size))
        digest = int.from_bytes(blake2b(described.encode(), digest_size=8).digest(), "little")
        own = (self._ranks, self._leaves, torch.get_num_threads(), digest, self._rng_seed % 2**64)
        self._meeting.settle(own)
        self._meeting.meet()
        for rank in range(self._ranks):
            theirs = self._meeting.settings(rank, len(own))
            for name, here, there in zip(_SETTINGS, own, theirs, strict=True):
                if here != there:
                    values = "" if name == "model" else f": {there} there, {here} here"
                    raise SetupRefused(
                        f"rank {rank} has another {name} than rank {self._rank}{values}. Exact sums need the same on "
                        "all ranks"
                    )
        self._meeting.arrive()

    def close(self) -> None:
        """Leave the model's layers and the descriptors as they were. DDP keeps its hook."""
        self._statistics.detach()
        self._meeting.close()

    @contextmanager
    def leaf(self, step: int, leaf: int) -> Iterator[None]:
        """Enclose forward and backward passes of one leaf: those of this rank, each once, in their order.

        `step`: the number of the update, from 1. The block divides its loss by the number of leaves, and gives its
        numbers to `note`. When the last leaf of this rank ends, the parameters have the gradients of all leaves, and
        `numbers` is known.

        An exception in the block ends the sums of all ranks. Raises RankLost if another rank is lost, and SetupRefused
        if the leaf shows what cannot be summed exactly.
        """
        is_last = leaf == self.block[-1]
        try:
            self._begin(step, leaf)
            quiet: Any = nullcontext() if self._silent is None or is_last else self._silent.model.no_sync()
            with quiet, self._statistics.of(leaf):
                yield
            with torch.no_grad():
                self._take(leaf, is_last=is_last)
                if is_last:
                    self._sum()
        except RankLost as error:
            self._meeting.give_up(error.rank)
            raise
        except BaseException:
            self._meeting.give_up()
            raise

    def note(self, leaf: int, *values: float) -> None:
        """Keep the numbers of a leaf, its loss for example, for all ranks. Call it inside of the block."""
        self._memory.numbers[leaf] = torch.tensor(values, dtype=torch.float64)

    @property
    def numbers(self) -> list[list[float]]:
        """The numbers of all leaves of the last step, in their order: [leaves][numbers]."""
        return self._numbers

    def _begin(self, step: int, leaf: int) -> None:
        if leaf != self._next:
            raise ValueError(f"leaf {leaf} was begun, but leaf {self._next} of {self.block} comes next")
        if leaf == self.block.start:
            self._check_parameters()
            self._step, self._used = step, [False] * len(self._parameters)
            self._meeting.begin(step)
            # Others may still read what this step will overwrite.
            self._meeting.wait()
        self._next = leaf + 1 if leaf != self.block[-1] else self.block.start
        if self._silent is not None and leaf == self.block[-1]:
            self._silent.begin_last(one for one, was in zip(self._parameters, self._used, strict=True) if was)
        seed_leaf(self._rng_seed, step, leaf, self._held)

    def _check_parameters(self) -> None:
        """Raises SetupRefused if a gradient is there already, or a parameter is trained that has no place."""
        for name, one in zip(self._names, self._parameters, strict=True):
            if one.grad is not None:
                raise SetupRefused(
                    f"{name} has a gradient before the step begins, which would count on one rank only. Drop the "
                    "gradients after each update: optimizer.zero_grad(set_to_none=True)"
                )
        for name, one in self._frozen:
            if one.requires_grad:
                raise SetupRefused(
                    f"{name} was frozen when the exact sums were set up, and is trained now: set them up anew"
                )

    def _take(self, leaf: int, *, is_last: bool) -> None:
        """Copy the gradients of a leaf into the mapping, or add them to those of rank 0's leaves before it."""
        slot = order.slot_of(leaf, self._leaves, self._ranks)
        present, views = self._memory.present[slot], self._views[slot]
        had = present.tolist() if slot == 0 and leaf > 0 else [0] * len(views)
        unused = {id(one) for one in self._silent.unused} if self._silent is not None and is_last else ()
        for number, (one, view) in enumerate(zip(self._parameters, views, strict=True)):
            grad = one.grad
            # DDP has put zeros there. Something else was added to them if there was a second backward pass.
            if grad is None or (id(one) in unused and not bool(grad.any())):
                continue
            if grad.dtype != view.dtype or grad.shape != view.shape or grad.layout != torch.strided:
                raise SetupRefused(
                    f"the gradient of {self._names[number]} is {grad.layout}, {grad.dtype} and {tuple(grad.shape)}; "
                    f"exact sums take dense ones like the parameter ({view.dtype}, {tuple(view.shape)}) only"
                )
            if had[number]:
                view.add_(grad)
            else:
                view.copy_(grad)
                had[number] = 1
            if not is_last:
                one.grad, self._used[number] = None, True
        self._memory.present[slot] = torch.tensor(had, dtype=torch.uint8)

    def _sum(self) -> None:
        """Meet, add up this rank's share, meet, and read the sum."""
        self._meeting.meet()
        for rank, step in enumerate(self._meeting.steps()):
            if step != self._step:
                raise SetupRefused(
                    f"rank {rank} sums the gradients of step {step}, rank {self._rank} those of step {self._step}: all "
                    "ranks must make the same steps"
                )
        add_up(self._layout, self._pieces, self._memory.present, self._memory.gradients)
        self._numbers = self._memory.numbers.tolist()
        self._statistics.apply()
        self._meeting.meet()
        used = self._memory.present.any(dim=0).tolist()
        for one, view, is_used in zip(self._parameters, self._views[0], used, strict=True):
            if not is_used:
                one.grad = None
                continue
            if one.grad is None:
                one.grad = torch.empty_strided(view.shape, view.stride(), dtype=one.dtype, device=one.device)
            one.grad.copy_(view)
        self._meeting.arrive()
        seed_leaf(self._rng_seed, self._step, self._leaves, self._held)


def checked(name: str, parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter. Raises SetupRefused if its gradients cannot be summed here."""
    if is_lazy(parameter):
        raise SetupRefused(f"{name} has no shape yet: make a forward pass before the exact sums are set up")
    if type(parameter.data) is not torch.Tensor:
        kind = type(parameter.data).__name__
        raise SetupRefused(f"{name} is a {kind}: exact sums take plain whole tensors, as DDP has them")
    return parameter
