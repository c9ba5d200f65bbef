"""Hold one optimizer to its rates: they are compared and written immediately before each of its steps.

Promises: whatever public interfaces of torch did to the groups, a step finds the registered groups, as the same
objects, with the rates of `row`. Changes by a closure are corrected before the update that follows it. The guard is
the last of the optimizer's step pre-hooks: a global pre-hook, which torch runs before those, moves it there. It
cannot see hooks cleared through private attributes, `step.__wrapped__`, or writes to `p.data`; the audit finds those.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from operator import is_
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

import torch
from torch.optim.optimizer import (
    _global_optimizer_pre_hooks,
    register_optimizer_step_pre_hook,
)

from tolariad.trainer.lr import source_lines, unrolled
from tolariad.trainer.lr.violation import UNKNOWN_GROUP, Violation

if TYPE_CHECKING:
    from torch.optim import Optimizer

Tell = Callable[[Violation], None]
_ATTRIBUTE: Final = "_tolaria_guard"


class Guard:
    """`row`: the rates in force, one for each group. `ids`: the groups' names. `compares`: report differences."""

    def __init__(self, optimizer: Optimizer, ids: list[str], tell: Tell, *, compares: bool) -> None:
        self.optimizer = optimizer
        self.ids = ids
        self.row: tuple[float, ...] = ()
        self.stepped = False
        self.watch: Callable[[tuple[float, ...]], None] | None = None
        self.frozen: list[torch.Tensor] = []
        self._tell = tell
        self._compares = compares
        self._adopt()
        self._handle = optimizer.register_step_pre_hook(self._before_step)
        self.hook_id: int = self._handle.id
        self.suspects: list[Any] = []
        optimizer.__dict__[_ATTRIBUTE] = self
        _watch_all_optimizers()

    def _adopt(self) -> None:
        """Take the optimizer's present groups as the registered ones."""
        # Keep the list objects too, not only their content: torch and user code may hold references to them.
        self._list: list[dict[str, Any]] = self.optimizer.param_groups
        self.groups = list(self._list)
        self._param_lists = [group["params"] for group in self.groups]
        self._params = [list(params) for params in self._param_lists]
        look, self.put = unrolled.for_groups(self.groups, self._param_lists, self._params)
        # Lists compare elements by identity, then by `==`. For tensors of one element `==` compares values, so those
        # are compared by identity in addition. For larger tensors it raises, which also counts as a difference.
        scalars = [
            (params, index, one) for params in self._param_lists for index, one in enumerate(params) if one.numel() == 1
        ]
        self._look = _with_scalars(look, scalars) if scalars else look

    def release(self) -> None:
        """Release the optimizer. Its rates stay as they are."""
        self._handle.remove()
        self.optimizer.__dict__.pop(_ATTRIBUTE, None)

    def add_group(self, group: dict[str, Any], id_: str) -> None:
        """Add a group to the optimizer and register it."""
        self.optimizer.add_param_group(group)
        self.ids.append(id_)
        self._adopt()

    def remove_group(self, id_: str) -> None:
        """Remove a group from the optimizer, with the state of its parameters."""
        index = self.ids.index(id_)
        for parameter in self._params[index]:
            self.optimizer.state.pop(parameter, None)
        del self._list[index], self.ids[index]
        self._adopt()

    @property
    def parameters(self) -> Iterator[torch.Tensor]:
        """Every parameter, in the order of the groups."""
        return (parameter for params in self._params for parameter in params)

    def write(self, row: tuple[float, ...]) -> None:
        """Write these rates into the groups; they are in force from now on."""
        self.row = row
        for group, rate in zip(self.groups, row, strict=False):
            group["lr"] = rate

    # -- compare and correct -------------------------------------------------------------------------------------------

    def is_clean(self) -> bool:
        """Return whether groups and rates are the objects that were written; `heal` judges equal rates."""
        look = self._look
        return look(self.optimizer.param_groups, self.row)

    def heal(self, where: str = "") -> list[Violation]:
        """Correct groups and rates; report and return the violations."""
        # Collect first: correcting the groups destroys the evidence. Report last: a callback may raise, and by then the
        # rates must be right.
        found = [one._replace(where=where) for one in self._violations()] if self._compares else []
        self._put_back()
        for violation in found:
            self._tell(violation)
        return found

    def take_back(self) -> None:
        """Correct groups and rates without a report: the optimizer's state was loaded on purpose."""
        self._put_back()

    def _found(self) -> list[dict[str, Any]]:
        """Return the present groups, with an empty dict for each that is not a dict."""
        groups: Any = self.optimizer.param_groups  # its annotation does not bind user code
        if not isinstance(groups, (list, tuple)):
            return []
        return [group if isinstance(group, dict) else {} for group in groups]

    def _violations(self) -> Iterator[Violation]:
        groups = self._found()
        known = {id(group) for group in self.groups}
        for group in groups if len(groups) != len(self.groups) else ():
            if id(group) not in known:
                count = len(group.get("params", ()))
                what = f"a group with {count} parameters was added without the controller"
                yield Violation(UNKNOWN_GROUP, None, _number(group.get("lr")), what)
        for index, (own, id_, rate) in enumerate(zip(self.groups, self.ids, self.row, strict=True)):
            at = groups[index] if index < len(groups) else None
            if at is None:
                yield Violation(id_, rate, None, "the group was removed from the optimizer")
            elif not _same(at.get("lr"), rate):
                what = "the rate was changed" if at is own else "the group was replaced by one with another rate"
                yield Violation(id_, rate, _number(at.get("lr")), what)
            elif not _same_objects(at.get("params", ()), self._params[index]):
                yield Violation(id_, rate, rate, "the group's parameters were replaced")

    def _put_back(self) -> None:
        """Restore the registered group objects. Keep other options of a replacement (betas): they are the user's."""
        now = self._found()
        if len(now) == len(self.groups):
            for own, other in zip(self.groups, now, strict=True):
                if other is not own:
                    own.update((key, value) for key, value in other.items() if key != "params")
        # Invariant of the guard: after this, the optimizer holds the registered list with the registered groups, as the
        # same objects. `_look` compares by identity and relies on it.
        self._list[:] = self.groups
        self.optimizer.param_groups = self._list
        for group, params, content in zip(self.groups, self._param_lists, self._params, strict=True):
            if not _same_objects(params, content):
                params[:] = content
            group["params"] = params
        self.write(self.row)

    # -- before a step -------------------------------------------------------------------------------------------------

    def come_last(self) -> None:
        """Move this guard after all other pre-hooks of the optimizer. Remember those, to name the cause of a change."""
        # It is an OrderedDict, though annotated otherwise; torch has no public way to order hooks.
        hooks: OrderedDict[int, Any]
        hooks = self.optimizer._optimizer_step_pre_hooks  # type: ignore[assignment]  # noqa: SLF001
        # setdefault: if somebody removed the hook through a handle, it is registered again.
        hooks.setdefault(self.hook_id, self._before_step)
        hooks.move_to_end(self.hook_id)
        if not self.is_clean():
            self.heal()
        others = (*_global_optimizer_pre_hooks.values(), *hooks.values())
        ours = (_before_any_step, self._before_step)
        self.suspects = [hook for hook in others if hook not in ours]

    def _before_step(
        self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        look = self._look  # a local is faster than an attribute, and than a call of is_clean
        if not self._compares or not look(self.optimizer.param_groups, self.row):
            self.heal(" or ".join(filter(None, map(source_lines.of_function, self.suspects))))
        self.stepped = True
        if self.frozen:
            self.drop_frozen_gradients()
        if self.watch is not None:
            self.watch(self.row)
            self.watch = None

        if len(args) == 1 and not kwargs:
            return None
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._around(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._around(kwargs["closure"])}
        return None

    def drop_frozen_gradients(self) -> None:
        """Drop the gradients of frozen groups: at rate 0 the moments would still change, and Rprop would step."""
        for parameter in self.frozen:
            parameter.grad = None

    def _around(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that calls `closure` and then corrects the rates."""

        def guarded() -> Any:
            loss = closure()
            if not self.is_clean():
                self.heal(source_lines.of_function(closure))
            self.drop_frozen_gradients()
            return loss

        return guarded


def _with_scalars(look: unrolled.Check, scalars: list[tuple[list[Any], int, Any]]) -> unrolled.Check:
    """Return a check that also compares parameters of one element by identity."""

    def check_scalars(groups: Sequence[unrolled.Group], row: tuple[float, ...]) -> bool:
        if not look(groups, row):
            return False
        return all(params[index] is one for params, index, one in scalars)

    return check_scalars


def _same(found: object, rate: float) -> bool:
    # Only a Python float counts. Code that holds a tensor rate could change it in place after this comparison.
    return type(found) is float and found == rate


def _same_objects(a: Any, b: Any) -> bool:
    return hasattr(a, "__len__") and len(a) == len(b) and all(map(is_, a, b))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


# -- all optimizers of the process -------------------------------------------------------------------------------------


class Controller(Protocol):
    """An object whose parameters no unguarded optimizer may change."""

    def refuse_if_ours(self, optimizer: Optimizer) -> None:
        """Raise if the optimizer holds one of those parameters."""

    def holds(self, held: Optimizer | torch.nn.Module) -> bool:
        """Return whether the optimizer, or a parameter of the model, belongs to this controller."""


# In the order of their creation: a program may train the same parameters again, under a new controller.
_controllers: WeakValueDictionary[int, Controller] = WeakValueDictionary()
_numbers: Final = count()


def before_foreign_steps(controller: Controller) -> None:
    """Call `controller.refuse_if_ours` before each step of an unguarded optimizer, as long as the controller exists."""
    _controllers[next(_numbers)] = controller


def controlling(held: Optimizer | torch.nn.Module) -> Controller | None:
    """Return the newest controller of the rates of this optimizer, or of the model's parameters; or None."""
    newest_first = (one for _, one in sorted(_controllers.items(), key=lambda item: -item[0]))
    return next((controller for controller in newest_first if controller.holds(held)), None)


def _before_any_step(optimizer: Optimizer, _: Any, __: Any) -> None:
    """Torch's global step pre-hook. It runs before an optimizer's own hooks, for every optimizer."""
    # Use the optimizer's own dict: a wrapper that forwards attributes would return the guard of another optimizer.
    own = optimizer.__dict__
    guard: Guard | None = own.get(_ATTRIBUTE)
    if guard is None or guard.optimizer is not optimizer:
        for controller in tuple(_controllers.values()):
            controller.refuse_if_ours(optimizer)
        return
    hooks = own["_optimizer_step_pre_hooks"]
    if len(hooks) != 1 or len(_global_optimizer_pre_hooks) != 1 or guard.hook_id not in hooks or guard.suspects:
        guard.come_last()


def _watch_all_optimizers() -> None:
    if _before_any_step not in _global_optimizer_pre_hooks.values():
        register_optimizer_step_pre_hook(_before_any_step)
