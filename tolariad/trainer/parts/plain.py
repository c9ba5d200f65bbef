"""Parts of plain data that no order changes: loss scale, count of orders, task, data, random states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.checkpoints.random_states import fitted
from tolariad.trainer.data.randomness import rng_states, set_rng_states
from tolariad.trainer.parts.part import Part, Restoring, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup


class ScalingPart(Part):
    """The loss scale of an fp16 run. Its entry is None in other formats."""

    name = "scaling"

    def __init__(self, setup: Setup) -> None:
        self._scaling = setup.scaling

    def state(self) -> State:
        return State({"scaling": None if self._scaling is None else self._scaling.state()})

    def load(self, held: Restoring) -> None:
        state = held.entry("scaling")
        if self._scaling is not None and state is not None:
            self._scaling.load(state)


class ActedPart(Part):
    """How many boundary orders the state contains. The keys of the newest are beside the state (`ActedOrders`)."""

    name = "orders"

    def __init__(self, setup: Setup) -> None:
        self._acted = setup.acted

    def state(self) -> State:
        return State({"orders": self._acted.count})

    def load(self, held: Restoring) -> None:
        self._acted.restored(held.entry("orders"), held.loaded.acted)


class _OfTheUser(Part):
    """A part that is compared with a snapshot only. What loads from disk may convert what an older version saved."""

    def differing(self, now: Loaded, held: Loaded) -> Iterator[str]:
        yield from ()


class TaskPart(_OfTheUser):
    """What the task's `state_dict` returns, if it has one."""

    name = "task"

    def __init__(self, setup: Setup) -> None:
        self._task = setup.task

    def state(self) -> State:
        state_dict = getattr(self._task, "state_dict", None)
        return State({"task": state_dict() if callable(state_dict) else None})

    def load(self, held: Restoring) -> None:
        load, state = getattr(self._task, "load_state_dict", None), held.entry("task")
        if callable(load) and state is not None:
            load(state)


class DataPart(_OfTheUser):
    """The place in the training data, of data that have a state of their own."""

    name = "data"

    def __init__(self, setup: Setup) -> None:
        self._train = setup.train

    def state(self) -> State:
        return State({"data": self._train.state()})

    def load(self, held: Restoring) -> None:
        self._train.load_state(held.entry("data"))


class RandomPart(Part):
    """The process-wide random generators. It is last in the list: to restore another part may draw."""

    name = "rng"

    def __init__(self, setup: Setup) -> None:
        self._device = setup.device

    def state(self) -> State:
        # Without a GPU the entry is absent: such checkpoints are the same as those of older versions.
        device = {"device": self._device.index or 0} if self._device.type == "cuda" else {}
        return State({"rng": {**rng_states(), **device}})

    def load(self, held: Restoring) -> None:
        set_rng_states(fitted(held.entry("rng"), self._device))
