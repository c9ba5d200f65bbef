"""A part of a run's state, such as the model, the optimizers or the random states.

It is as torch's `Stateful`, an object with `state_dict` and `load_state_dict`, and the list of parts as torchtitan's
`states`. A part overrides what it has. Promises: a part knows no other part, but may rely on those before it in the
list, which are restored first. `state` changes nothing and draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tolariad.trainer.checkpoints import lanes
from tolariad.trainer.checkpoints.compared import differing_values
from tolariad.trainer.checkpoints.files import STATE_FILE
from tolariad.trainer.checkpoints.tree import encode_tree, made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tolariad.core import messages as m
    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
    from tolariad.trainer.orders import Link
    from tolariad.trainer.orders.numbered import Kind

    Files = Mapping[str, Mapping[str, torch.Tensor]]
    Orders = Mapping[type[m.AnyBoundaryOrder], Kind]


@dataclass(frozen=True)
class State:
    """The state of a part, with its live tensors.

    * `tree`: entries of the state, by key. They are plain data and tensors (`checkpoints.tree`). If a part has nothing
      to say, leave its entry out.
    * `tensors`: those that have a file of their own, by group of files and name. They are copied in place.
    * `aliases`: further names of tied tensors, each with the name under which the tensor is stored.
    * `transient`: buffers that `state_dict()` leaves out.
    """

    tree: Mapping[str, Any] = field(default_factory=dict)
    tensors: Files = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    transient: tuple[str, ...] = ()


def _quiet(_: str) -> None:
    """Nobody measures."""


@dataclass(frozen=True, kw_only=True)
class Restoring:
    """A restore in progress.

    * `copy`: copies the second tensor of each pair into the first.
    * `done`: called with the name under which the time since its last call is counted.
    * `limit_s`: the time limit of a rollback's tier, in seconds; None at a start.
    """

    loaded: Loaded
    device: torch.device
    copy: lanes.Copy = lanes.copy
    done: Callable[[str], None] = _quiet
    limit_s: float | None = None

    @property
    def position(self) -> Position:
        """The position of the state."""
        return self.loaded.position

    def entry(self, key: str) -> Any:
        """Return a copy of an entry of the state; None if the state does not have it."""
        return made(self.loaded.state.get(key), self.device)


class Trained(NamedTuple):
    """What the handlers of a part's orders may use of the trainer.

    * `position`: returns the present position.
    * `regrouped`: call it when an order was answered that may have changed an optimizer's groups.
    * `reshaped`: call it when an order has made a change of the ledger.
    * `rewritten`: call it when an order has written to parameters.
    """

    link: Link
    position: Callable[[], Position]
    regrouped: Callable[[], None]
    reshaped: Callable[[], None]
    rewritten: Callable[[], None]


class Part:
    """A part without a state. `name`: the key of its entry in the state.

    `after_update` is called after every update and the hook that follows it; None: there is nothing to do, and a step
    pays nothing.
    """

    name: str
    after_update: Callable[[], None] | None = None

    # -- captures ------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Return the state. Raises NotCapturable with the path of a value that cannot be captured."""
        return State()

    def check_capturable(self) -> None:
        """Raise NotCapturable if no checkpoint of the run would be possible. Called once, before training."""
        for key, value in self.state().tree.items():
            encode_tree(value, key)

    def room(self, live: Snapshot) -> int:
        """Return the bytes by which the part may grow during training, in a snapshot that is `live` now."""
        return 0

    # -- restores ------------------------------------------------------------------------------------------------------

    @property
    def span(self) -> str:
        """The name under which the time of its restore is counted (`RollbackSpans`)."""
        return "rest"

    def fit(self, loaded: Loaded) -> None:
        """Raise CheckpointUnfit if the state does not fit. Only the shape of the model may change here."""

    def load(self, held: Restoring) -> None:
        """Put the state back, after `fit`. The parts before this one are restored already."""

    def differing(self, now: Loaded, held: Loaded) -> Iterator[str]:
        """Yield the names of what differs between the captured state `now` and the state that was restored.

        What an older checkpoint does not contain is not compared.
        """
        stored = held.state.get(self.name)
        if stored is not None:
            yield from differing_values(f"{STATE_FILE} {self.name}", now.state.get(self.name), stored)

    def mark(self) -> Any:
        """Return what `go_back` needs if the state that comes next does not fit."""
        return None

    def go_back(self, mark: Any) -> None:
        """Be again as at the mark."""

    # -- orders --------------------------------------------------------------------------------------------------------

    def orders(self, trained: Trained) -> Mapping[type[m.AnyBoundaryOrder], Kind]:
        """Return how each kind of boundary order is carried out that changes this part."""
        return {}
