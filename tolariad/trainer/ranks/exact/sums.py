"""The exact sum of a step: take the gradients of each leaf, meet the other ranks, add up a share, read the whole.

The order of a step on each rank:

1. For each of its leaves: seed the generators, let the caller compute loss and gradients, take the gradients into the
   mapping. DDP, if there is one, sends nothing.
2. After its last leaf: meet. Then add up one share of the elements over all leaves, in their order. Meet again, and
   read the sum of all elements into the gradients of the parameters.
3. Apply the statistics of all leaves, and keep their numbers. The next step begins when all ranks have come so far.

A parameter that a leaf does not use has no gradient in it, and adds nothing: not even zero, because -0.0 + 0.0 is 0.0.
A parameter that no leaf uses has no gradient after the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import blake2b
from typing import Final

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
from tolariad.trainer.ranks.exact.quiet import quieten
from tolariad.trainer.ranks.exact.statistics import RunningStatistics
from tolariad.trainer.torch_private import lists
from tolariad.trainer.torch_private.hooks import after_accumulation

# The settings that must be equal on all ranks, in the order in which they are shown.
_SETTINGS: Final = ("number of ranks", "number of leaves", "number of torch threads", "model", "seed")


class ExactSum:
    """Gives every rank the gradients of one process that accumulates all leaves, bit for bit.

    `engine`: what else the bits depend on, in words.

        with exact.step(step) as block:
            for leaf in block:
                with exact.leaf(leaf):
                    loss = task_loss(model, batches[leaf])
                    exact.note(leaf, loss.item())
                    (loss / leaves).backward()
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

        `leaves`: the micro-batches of a step, of all ranks together, at most. `mapping`: the descriptor of a file in
        memory that all ranks have, empty at first, used by one group only; None for one rank. `rng_seed`, `generators`:
        see `seed_leaf`. `numbers`: how many each leaf gives to `note`. `limit_s`: how long to wait for a rank that
        runs, in seconds; one that has ended, gave up or is stopped is named much earlier. `waiting`: called about every
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
        self._rank, self._ranks, self._leaves = rank, ranks, leaves
        self._rng_seed, self._held = rng_seed, generators
        self._no_sync: Callable[[], AbstractContextManager[None]] = nullcontext
        inner = model
        if isinstance(model, DistributedDataParallel):
            quieten(model, rank, ranks)
            self._no_sync, inner = model.no_sync, model.module
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
        # Of the step in progress: its number, its leaves, the next leaf of this rank and its last one.
        self._step = self._count = self._next = self._last = 0
        # Which parameters have a gradient in the copy that is being filled.
        self._has: list[int] = []
        self._numbers: list[list[float]] = []
        self._told: list[dict[str, float]] = []
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
    def step(self, step: int, leaves: int | None = None) -> Iterator[range]:
        """Enclose this rank's leaves of one step, whose numbers it gives. At its end the gradients are those of all.

        `step`: the number of the update, from 1. `leaves`: how many this step has, the same on all ranks; fewer than
        usual at the end of an epoch, so that a rank may have none. Gradients of the step before must be gone.

        An exception in the block ends the sums of all ranks. Raises RankLost if another rank is lost, and SetupRefused
        if a leaf shows what cannot be summed exactly.
        """
        leaves = self._leaves if leaves is None else leaves
        if not 0 < leaves <= self._leaves:
            raise ValueError(f"a step has 1 to {self._leaves} leaves, not {leaves}")
        block = order.block(leaves, self._ranks, self._rank)
        try:
            self._begin(step, leaves, block)
            yield block
            if self._next != block.stop:
                raise ValueError(f"the step has ended, but leaf {self._next} of {block} was not computed")
            self._statistics.check()
            with torch.no_grad():
                self._sum(leaves)
        except RankLost as error:
            self._meeting.give_up(error.rank)
            raise
        except BaseException:
            self._meeting.give_up()
            raise

    @contextmanager
    def leaf(self, leaf: int) -> Iterator[None]:
        """Enclose forward and backward passes of one leaf: each one of the step's block once, in their order.

        The block divides its loss by the number of leaves of the step, and gives its numbers to `note`.
        """
        if leaf != self._next:
            raise ValueError(f"leaf {leaf} was begun, but leaf {self._next} comes next")
        seed_leaf(self._rng_seed, self._step, leaf, self._held)
        self._memory.numbers[leaf] = math.nan
        self._memory.told.drop(leaf)
        with self._no_sync(), self._statistics.of(leaf):
            yield
        with torch.no_grad():
            self._take(leaf)
        self._next = leaf + 1

    def note(self, leaf: int, *values: float) -> None:
        """Keep the numbers of a leaf, its loss for example, for all ranks: inside of the block. Else they are NaN."""
        self._memory.numbers[leaf] = torch.tensor(values, dtype=torch.float64)

    def tell(self, leaf: int, metrics: Mapping[str, float]) -> None:
        """Keep metrics of a leaf for all ranks: inside of the block, once. Raises SetupRefused if they are too long."""
        self._memory.told.put(leaf, metrics)

    @property
    def told(self) -> list[dict[str, float]]:
        """The metrics of all leaves of the last step, in their order."""
        return self._told

    @property
    def numbers(self) -> list[list[float]]:
        """The numbers of all leaves of the last step, in their order: [leaves of the step][numbers]."""
        return self._numbers

    def _begin(self, step: int, leaves: int, block: range) -> None:
        self._check_parameters()
        self._step, self._count = step, leaves
        self._next, self._last = block.start, block.stop - 1
        self._meeting.begin(step, leaves)
        # Others may still read what this step will overwrite.
        self._meeting.wait()
        self._statistics.begin()
        if self._rank == 0:
            self._memory.present[0] = 0

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

    def _take(self, leaf: int) -> None:
        """Copy the gradients of a leaf into the mapping, or add them to those of rank 0's leaves before it."""
        slot = order.slot_of(leaf, self._count, self._ranks)
        if slot != 0 or leaf == 0:
            self._has = [0] * len(self._parameters)
        new: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        more: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for number, (one, view) in enumerate(zip(self._parameters, self._views[slot], strict=True)):
            grad = one.grad
            if grad is None:
                continue
            if grad.dtype is not view.dtype or grad.layout is not torch.strided:
                raise SetupRefused(
                    f"the gradient of {self._names[number]} is {grad.layout} of {grad.dtype}; exact sums take dense "
                    f"ones of the parameter's dtype ({view.dtype}) only"
                )
            views, gradients = more if self._has[number] else new
            views.append(view)
            gradients.append(grad)
            self._has[number] = 1
            if leaf != self._last:
                one.grad = None
        if new[0]:
            lists.copy_(*new)
        if more[0]:
            lists.add_(*more)
        self._memory.present[slot] = torch.tensor(self._has, dtype=torch.uint8)

    def _sum(self, leaves: int) -> None:
        """Meet, add up this rank's share, meet, and read the sum."""
        self._meeting.meet()
        for rank, (step, there) in enumerate(self._meeting.steps()):
            if (step, there) != (self._step, leaves):
                raise SetupRefused(
                    f"rank {rank} sums {there} leaves of step {step}, rank {self._rank} sums {leaves} of step "
                    f"{self._step}: all ranks must make the same steps"
                )
        slots = order.slots(leaves, self._ranks)
        present = self._memory.present[:slots]
        add_up(self._layout, self._pieces, present, self._memory.gradients[:slots])
        self._numbers = self._memory.numbers[:leaves].tolist()
        self._told = self._memory.told.of(leaves)
        self._statistics.apply(leaves)
        self._meeting.meet()
        used = present.any(dim=0).tolist()
        gradients, views = [], []
        for one, view, is_used in zip(self._parameters, self._views[0], used, strict=True):
            if not is_used:
                one.grad = None
                continue
            if one.grad is None:
                one.grad = torch.empty_strided(view.shape, view.stride(), dtype=one.dtype, device=one.device)
            gradients.append(one.grad)
            views.append(view)
        if views:
            lists.copy_(gradients, views)
        self._meeting.arrive()
        seed_leaf(self._rng_seed, self._step, leaves, self._held)


def checked(name: str, parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter. Raises SetupRefused if its gradients cannot be summed here."""
    if is_lazy(parameter):
        raise SetupRefused(f"{name} has no shape yet: make a forward pass before the exact sums are set up")
    if type(parameter.data) is not torch.Tensor:
        kind = type(parameter.data).__name__
        raise SetupRefused(f"{name} is a {kind}: exact sums take plain whole tensors, as DDP has them")
    if after_accumulation(parameter):
        raise SetupRefused(
            f"{name} has a hook after its accumulation, which would see the gradient of one micro-batch, not of the "
            "step: remove it, or train without exact sums"
        )
    return parameter
