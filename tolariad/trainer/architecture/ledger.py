"""The ledger of a run's model: which changes it has gone through since the task built it.

A hook asks for a change by `rates.grow(name, **arguments)`. The task's `grow` makes it, the optimizers and the moving
average follow, and the ledger keeps its name and arguments. They are part of every checkpoint. Boundary orders ask for
changes whose name has a maker of its own: a seed is put into its slot, or taken out of it.

Promises: a change is made whole or not at all. `move_to` gives the model the shape of a checkpoint, without a draw from
any random generator. A change is repeated by the same code, with the same arguments, in the same order.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.architecture.by_order import is_by_order
from tolariad.core.calc.bounds import NOTE_CHARACTERS_MAX
from tolariad.core.calc.pruning.ledger import is_of_pruning
from tolariad.core.calc.seeds.ledger import REMOVE, is_of_seed
from tolariad.trainer.architecture.follow import Following
from tolariad.trainer.architecture.undo import Shapes, Undo, shapes_of
from tolariad.trainer.data.randomness import preserved_rng, rng_states, set_rng_states
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.optim.average import Average
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.optim.rate_controller import Tell, Told

_log: Final = logging.getLogger(__name__)

_NAME_CHARACTERS_MAX: Final = 128
_NAMED_MAX: Final = 5
UNRECORDED: Final = (
    "the model changed up to step %d by code that the run cannot repeat (%s): a restart begins before this change. "
    "Make it in the task's grow(model, change) and ask for it by rates.grow() (docs/task.md)"
)
_PLAIN: Final = "arguments must be None, True, False, numbers, text, lists, or dicts with text as keys"


# The undo records of each living model: a program may give the model that a run grew to the next run.
_grown: Final[WeakKeyDictionary[nn.Module, list[Undo]]] = WeakKeyDictionary()


def as_built(model: nn.Module) -> None:
    """Undo the changes that an earlier run of this process made to this very model, and drop the gradients it left.

    Call it before a run is built over it: no checkpoint contains gradients, so a re-run begins without any.
    """
    undo = _grown.pop(model, [])
    while undo:
        undo.pop().put_model_back()
    model.zero_grad(set_to_none=True)


class Change(NamedTuple):
    """A call of the task's `grow`: the name and the arguments that the hook gave, as JSON has them."""

    name: str
    arguments: dict[str, Any]


class _HookPosition(NamedTuple):
    """Between which steps a hook runs."""

    before_step: int
    epoch_ended: int


# Make a change: the model, the owners and what the rate controller holds.
Maker = Callable[[m.ScriptChange], None]


def _quiet(_: object) -> None:
    """Nobody wants to know."""


class Ledger:
    """The changes of one model, `model`, the oldest first. `changes` are those in force."""

    def __init__(
        self,
        task: Any,
        model: nn.Module,
        owners: list[Owner],
        rates: UnifiedLRController,
        average: Average | None,
        *,
        device: torch.device,
    ) -> None:
        """`owners`: the host's owners. The list is changed in place by changes that have a maker."""
        self._task, self.model, self.device = task, model, device
        self._owners, self._rates, self._average = owners, rates, average
        self._host = tuple(owners)
        self._makers: dict[str, Maker] = {}
        self._checks: list[Callable[[], None]] = []
        self._undo = _grown[model] = list[Undo]()
        self._place: _HookPosition | None = None
        self._observers: list[Callable[[], None]] = []
        self._on_change: Callable[[m.ScriptChange], None] = _quiet
        self._on_rebuild: Tell = _quiet
        self.changes: tuple[m.ScriptChange, ...] = ()
        # As the recorded changes left the model, or as it was when an unrecorded change was logged.
        self._shapes = shapes_of(model)
        rates.grow_by(self._grow)

    # -- who is told ---------------------------------------------------------------------------------------------------

    def report_to(self, on_change: Callable[[m.ScriptChange], None], on_rebuild: Tell) -> None:
        """Report the changes that hooks make, and the rebuilds of optimizers that belong to changes."""
        self._on_change, self._on_rebuild = on_change, on_rebuild

    def notify(self, observer: Callable[[], None]) -> None:
        """Call `observer` after every change of the model's shape, and after every one that was undone."""
        self._observers.append(observer)

    # -- changes by boundary orders ------------------------------------------------------------------------------------

    def make_by(self, makers: Mapping[str, Maker], check: Callable[[], None]) -> None:
        """Let these make the changes of their names. `check` raises SetupRefused if a hook's change harmed them.

        It is called in the order of these calls, and the last one may change what it checks.
        """
        self._makers.update(makers)
        self._checks.append(check)

    def order(self, name: str, arguments: str, *, before_step: int) -> None:
        """Make a change that has a maker. Raises SetupRefused, or what the maker raises: then nothing has changed."""
        if name != REMOVE:
            self._refuse_more()
        self._make(m.ScriptChange(len(self.changes) + 1, name, arguments, before_step, 0), self._on_rebuild)

    def count(self, name: str) -> int:
        """Return how many changes of this name are in force."""
        return sum(one.name == name for one in self.changes)

    def _refuse_more(self) -> None:
        if len(self.changes) >= st.CHANGES_MAX:
            raise SetupRefused(f"the model has changed {st.CHANGES_MAX} times already; more changes are not recorded")

    # -- changes by hooks ----------------------------------------------------------------------------------------------

    @property
    def can_grow(self) -> bool:
        """Does the task have `grow`?"""
        return callable(getattr(self._task, "grow", None))

    def allow(self, before_step: int, epoch_ended: int) -> None:
        """A hook runs: it may ask for changes."""
        self._place = _HookPosition(before_step, epoch_ended)

    def forbid(self) -> None:
        """The hook has ended."""
        self._place = None

    def _grow(self, name: str, arguments: dict[str, Any]) -> None:
        """Make a change that a hook asks for. If it raises, nothing has changed."""
        place, text = self._place, _text_of(name, arguments)
        if place is None:
            raise SetupRefused(
                f"grow({name!r}) was called outside of on_step_end and on_epoch_end: only there no step is half done. "
                "If a change is in progress already, finish it first"
            )
        if not self.can_grow:
            raise SetupRefused(
                f"grow({name!r}) needs a method grow(model, change) of the task: it makes the change now, and again "
                "after a restart (docs/task.md)"
            )
        if is_by_order(name):
            whose = "a seed" if is_of_seed(name) else "pruning"
            raise SetupRefused(f"grow({name!r}): a name that begins like this is that of {whose}; choose another name")
        self._refuse_more()
        change = m.ScriptChange(len(self.changes) + 1, name, text, place.before_step, place.epoch_ended)
        self.forbid()  # the task's `grow` may not ask for another change
        try:
            self._make(change, self._on_rebuild)
        finally:
            self._place = place
        self._on_change(change)

    # -- changes that were recorded ------------------------------------------------------------------------------------

    def repeat(self, change: m.ScriptChange) -> None:
        """Make a recorded change once more. Raises SetupRefused with what to do."""
        # The arguments of a compaction fill pages.
        arguments = "" if is_of_pruning(change.name) else f" {change.arguments}"
        what = f"change {change.number} of the model, {change.name}{arguments}, which this run made before step "
        what += f"{change.before_step}, cannot be repeated"
        is_of_task = change.name not in self._makers
        if is_of_task and is_of_seed(change.name):
            raise SetupRefused(f"{what}: the model has no slot for seeds any more. Give it back the slots that it had")
        if is_of_task and not self.can_grow:
            raise SetupRefused(
                f"{what}: the task has no method grow(model, change). Give it back the one that made the change. To "
                "train the grown model by other code, begin another run with --from and a model(cfg) that builds it"
            )
        try:
            self._make(change, _quiet)
        except Exception as error:
            by, then = ("the task's grow", "grow do") if is_of_task else ("the seed's blueprint", "the blueprint make")
            if is_of_pruning(change.name):
                by, then = "the removal of its units", "the task's model(cfg) build"
            why = str(error) if isinstance(error, SetupRefused) else f"{by} raised {type(error).__name__}: {error}"
            raise SetupRefused(f"{what}: {why}. Let {then} what it did then, and start the run again") from error

    def move_to(self, changes: Sequence[m.ScriptChange]) -> None:
        """Give the model the shape that these changes lead to, whichever it has. Values are still to be restored.

        Raises SetupRefused if a change cannot be repeated; then the model has the shape that it had.
        """
        before, target = self.changes, tuple(changes)
        if target == before:
            return
        shared = _shared(before, target)
        # Undo as little as possible: a change that is undone and made again has new tensors.
        self._back_to(shared)
        with preserved_rng():
            for change in target[shared:]:
                try:
                    self.repeat(change)
                except SetupRefused:
                    self._back_to(shared)
                    for one in before[shared:]:
                        self.repeat(one)
                    raise

    def parameters_at(self, changes: Sequence[m.ScriptChange]) -> Shapes | None:
        """Names, shapes and dtypes of the parameters after these changes; None if the model never went through them."""
        count = len(changes)
        if tuple(changes) != self.changes[:count]:
            return None
        if count == len(self.changes):
            return shapes_of(self.model)
        return self._undo[count].parameters

    # -- changes that nobody recorded ----------------------------------------------------------------------------------

    def say_unrecorded(self, step: int) -> None:
        """Log once that the model has another shape than the recorded changes gave it. `step`: the last one made."""
        shapes = shapes_of(self.model)
        changed = sorted({name for name, _ in self._shapes.items() ^ shapes.items()})
        if changed:
            _log.warning(UNRECORDED, step, ", ".join(changed[:_NAMED_MAX]) + (", ..." if changed[_NAMED_MAX:] else ""))
            self._shapes = shapes

    # -- inside --------------------------------------------------------------------------------------------------------

    def _make(self, change: m.ScriptChange, tell: Tell) -> None:
        """Change the model with all that depends on its shape, or leave everything as it was."""
        self.say_unrecorded(change.before_step - 1)
        undo, drawn = Undo(self.model, self._owners, self._rates), rng_states()
        rebuilds: list[Told] = []
        try:
            with self._rates.rebuilds_told_to(rebuilds.append):
                if (maker := self._makers.get(change.name)) is not None:
                    maker(change)
                else:
                    self._grow_and_follow(change)
        except BaseException as error:
            undo.put_back()
            set_rng_states(drawn)
            self._reshaped()
            for told in rebuilds:
                tell(_undone(told, error))
            raise
        for told in rebuilds:
            tell(told)
        undo.settle()
        self._undo.append(undo)
        self.changes = (*self.changes, change)
        self._reshaped()

    def _grow_and_follow(self, change: m.ScriptChange) -> None:
        """Let the task change the model, and its optimizers and the moving average follow."""
        following = Following(self.model, self._owners, self._rates, self._average, hosts=len(self._host))
        given = self._task.grow(self.model, Change(change.name, json.loads(change.arguments)))
        if any(parameter.device.type != self.device.type for parameter in self.model.parameters()):
            self.model.to(self.device)
        following.after(given)
        for check in self._checks:
            check()

    def _back_to(self, count: int) -> None:
        while len(self._undo) > count:
            self._undo.pop().put_back()
        self.changes = self.changes[:count]
        self._reshaped()

    def _reshaped(self) -> None:
        self._shapes = shapes_of(self.model)
        if self._average is not None:
            self._average.follow(self.model)
        for observer in self._observers:
            observer()


def _undone(told: Told, error: BaseException) -> Told:
    """A rebuild that belongs to a change that failed: a committed one was undone."""
    if not isinstance(told, m.OptimizerRebuildCommitted):
        return told
    why = f"the change of the model failed and was undone: {type(error).__name__}: {error}"
    return m.OptimizerRebuildAborted(optimizer=told.optimizer, why=why, counts=told.counts)


def state_of(changes: Sequence[m.ScriptChange]) -> list[list[Any]]:
    """Changes as plain data for a checkpoint."""
    return [[one.name, one.arguments, one.before_step, one.epoch_ended] for one in changes]


def changes_from(state: list[list[Any]] | None) -> tuple[m.ScriptChange, ...]:
    """The changes that `state_of` saved; none of a checkpoint that is older than the ledger."""
    return tuple(m.ScriptChange(number, *each) for number, each in enumerate(state or (), 1))


def _shared(one: Sequence[m.ScriptChange], other: Sequence[m.ScriptChange]) -> int:
    """How many changes both begin with."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _with_lists(value: Any) -> Any:
    """`value` with a list for every tuple."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _text_of(name: str, arguments: dict[str, Any]) -> str:
    """Return the arguments as JSON with sorted keys. Raises SetupRefused if JSON would not give them back unchanged."""
    if not 0 < len(name) <= _NAME_CHARACTERS_MAX or not name.isprintable():
        raise SetupRefused(
            f"grow: the name of a change must have 1 to {_NAME_CHARACTERS_MAX} printable characters, not {name!r}"
        )
    try:
        text = json.dumps(arguments, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SetupRefused(f"grow({name!r}): {_PLAIN}; {error}") from error
    if json.loads(text) != _with_lists(arguments):
        raise SetupRefused(f"grow({name!r}): {_PLAIN}; these come back from JSON as {text}")
    if len(text) > NOTE_CHARACTERS_MAX:
        raise SetupRefused(
            f"grow({name!r}): its arguments take {len(text)} characters, at most {NOTE_CHARACTERS_MAX} are kept"
        )
    return text
