"""Hold one optimizer to its rates: they are compared and written immediately before each of its steps.

Promises: a step finds the registered groups, as the same objects, with the rates of `row`. This holds even if other
code changed them through public interfaces of torch. Changes by a closure are corrected before the update that follows
it. The guard is the last of the optimizer's step pre-hooks: a global pre-hook, which torch runs before those, moves it
there. It cannot see hooks cleared through private attributes, `step.__wrapped__`, or writes to `p.data`. The audit
finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tolariad.trainer.lr import schedulers, source_lines, unrolled
from tolariad.trainer.torch_private.hooks import BEFORE_ANY_STEP, before_step

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

GUARD_ATTRIBUTE: Final = "_tolaria_guard"
UNKNOWN_GROUP: Final = ""


class Violation(NamedTuple):
    """A rate that was changed, or an optimizer that stepped, outside the controller.

    * `group`: the group's name; "" if the group is not registered.
    * `found`: the rate that was found; None if it is no number.
    * `where`: the line of code that did it; "" if it is unknown.
    """

    group: str
    expected: float | None
    found: float | None
    what: str
    where: str = ""

    def __str__(self) -> str:
        """Return one sentence for an exception or a log."""
        name = f"group {self.group}: " if self.group else ""
        rates = "" if self.expected is None else f" (expected {self.expected!r}, found {self.found!r})"
        at = f", at {self.where}" if self.where else ""
        return f"{name}{self.what}{rates}{at}; change learning rates through the controller only"


Tell = Callable[[Violation], None]


class Guard:
    """Lets an optimizer step only with the rates that the controller has set.

    * `row`: the rates in force, one for each group.
    * `ids`: the groups' names.
    * `compares`: whether a rate that differs from `row` is reported.
    * `stepped`: whether the optimizer has stepped since `forget_step`.
    * `frozen`: parameters whose gradients are dropped.
    """

    def __init__(self, optimizer: Optimizer, ids: list[str], tell: Tell, *, compares: bool, stepped: bool) -> None:
        self.optimizer = optimizer
        self.ids = ids
        self.row: tuple[float, ...] = ()
        self.stepped = stepped
        self._watch: Callable[[tuple[float, ...]], None] | None = None
        self.frozen: list[torch.Tensor] = []
        self._tell = tell
        self._compares = compares
        self._adopt()
        self._handle = optimizer.register_step_pre_hook(self._before_step)
        self.hook_id: int = self._handle.id
        # Other hooks that run in this optimizer's steps: the possible causes of a change that `_before_step` finds.
        self.suspects: list[Any] = []
        # On the optimizer itself: the global hook runs before every step of every optimizer, and must find it quickly.
        optimizer.__dict__[GUARD_ATTRIBUTE] = self

    def _adopt(self) -> None:
        """Take the optimizer's present groups as the registered ones."""
        # Keep the list objects too, not only their content: torch and user code may hold references to them.
        self._list: list[dict[str, Any]] = self.optimizer.param_groups
        self.groups = list(self._list)
        self._param_lists = [group["params"] for group in self.groups]
        self._params = [list(params) for params in self._param_lists]
        look, self._put = unrolled.for_groups(self.groups, self._param_lists, self._params)
        # Lists compare elements by identity, then by `==`. For tensors of one element `==` compares values, so those
        # are compared by identity in addition. For larger tensors it raises, which also counts as a difference.
        scalars = [
            (params, index, one) for params in self._param_lists for index, one in enumerate(params) if one.numel() == 1
        ]
        self._look = _with_scalars(look, scalars) if scalars else look

    def release(self) -> None:
        """Release the optimizer. Its rates stay as they are."""
        self._handle.remove()
        self.optimizer.__dict__.pop(GUARD_ATTRIBUTE, None)

    def add_group(self, group: dict[str, Any], id_: str) -> None:
        """Add a group to the optimizer and register it."""
        self.optimizer.add_param_group(group)
        self.ids.append(id_)
        self._adopt()

    def remove_group(self, id_: str) -> None:
        """Remove a group from the optimizer, with the state of its parameters."""
        index = self.ids.index(id_)
        # The state too: torch's `state_dict` raises for the state of a parameter that is in no group.
        for parameter in self._params[index]:
            self.optimizer.state.pop(parameter, None)
        del self._list[index], self.ids[index]
        self._adopt()

    @property
    def parameters(self) -> Iterator[torch.Tensor]:
        """Every parameter, in the order of the groups."""
        return chain.from_iterable(self._params)

    def write(self, row: tuple[float, ...]) -> None:
        """Write these rates into the groups; they are in force from now on."""
        self.row = row
        for group, rate in zip(self.groups, row, strict=False):
            group["lr"] = rate

    def replace(self, row: tuple[float, ...]) -> tuple[float, ...]:
        """Write these rates, which are as many as the groups, and return those that were in force before."""
        # Every step calls this. `_put` is `write` in straight code.
        used, self.row = self.row, row
        self._put(row)
        return used

    def freeze(self, parameters: list[torch.Tensor]) -> None:
        """Drop the gradients of these parameters, and of no others, before each update."""
        self.frozen = parameters

    def forget_step(self) -> None:
        """Wait for the next step of the optimizer: `stepped` is False until then."""
        self.stepped = False

    def watch_next_update(self, watch: Callable[[tuple[float, ...]], None] | None) -> None:
        """Call `watch` with the rates before the next update, after every hook. None: call nothing."""
        self._watch = watch

    # -- compare and correct -------------------------------------------------------------------------------------------

    def is_clean(self) -> bool:
        """Return whether groups and rates are the objects that were written; `heal` judges equal rates."""
        look = self._look
        return look(self.optimizer.param_groups, self.row)

    def heal(self, where: str = "") -> list[Violation]:
        """Correct groups and rates; report and return the violations."""
        # Collect first: correcting the groups destroys the evidence. Report last: a callback may raise, and by then the
        # rates must be right.
        found = [one._replace(where=where) for one in self.violations()] if self._compares else []
        self.put_back()
        for violation in found:
            self._tell(violation)
        return found

    def _found(self) -> list[dict[str, Any]]:
        """Return the present groups, with an empty dict for each that is not a dict."""
        groups: Any = self.optimizer.param_groups  # its annotation does not bind user code
        if not isinstance(groups, (list, tuple)):
            return []
        return [group if isinstance(group, dict) else {} for group in groups]

    def violations(self) -> Iterator[Violation]:
        """Yield what other code has changed, without correcting it."""
        groups = self._found()
        known = {id(group) for group in self.groups}
        # Unknown groups in equal number replaced registered ones: the loop below names them by their places.
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
                found = _number(at.get("lr"))
                yield Violation(id_, rate, found, schedulers.what_wrote(self.optimizer, index, found) or what)
            elif not _same_objects(at.get("params", ()), self._params[index]):
                yield Violation(id_, rate, rate, "the group's parameters were replaced")

    def put_back(self) -> None:
        """Correct groups and rates without a report.

        Restore the registered group objects. Keep other options of a replacement (betas): they are the user's.
        """
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

    def come_last(self, caller: Callable[..., None]) -> None:
        """Move this guard after all other pre-hooks of the optimizer. Remember those, to name the cause of a change.

        `caller`: the global pre-hook that calls this; it changes nothing.
        """
        hooks = before_step(self.optimizer)
        # setdefault: if other code removed the hook through a handle, it is registered again.
        hooks.setdefault(self.hook_id, self._before_step)
        hooks.move_to_end(self.hook_id)
        # Now, before any hook of this step runs: what is wrong already was changed earlier. What `_before_step` finds
        # later in this step was changed by one of the suspects, and is reported with their lines.
        if not self.is_clean():
            self.heal()
        others = (*BEFORE_ANY_STEP.values(), *hooks.values())
        ours = (caller, self._before_step)
        self.suspects = [hook for hook in others if hook not in ours]

    def _before_step(
        self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        look = self._look  # a local is faster than an attribute, and than a call of is_clean
        # With guards switched off nothing is compared, and the rates are written before every step all the same.
        if not self._compares or not look(self.optimizer.param_groups, self.row):
            self.heal(" or ".join(filter(None, map(source_lines.of_function, self.suspects))))
        self.stepped = True
        if self.frozen:
            self.drop_frozen_gradients()
        # Last of all: the audit copies the values from which this update is computed.
        if self._watch is not None:
            self._watch(self.row)
            self._watch = None

        # `args[0]` is the optimizer. A closure runs inside the step, after this hook: its changes are corrected when it
        # returns, which is before the update.
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
            # Its backward pass made new gradients, also of frozen parameters.
            self.drop_frozen_gradients()
            return loss

        return guarded


def _with_scalars(look: unrolled.Check, scalars: list[tuple[list[Any], int, Any]]) -> unrolled.Check:
    """Return a check that also compares parameters of one element by identity."""

    # Only optimizers that have such parameters pay for the second comparison.
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
    # A report must not fail because user code put something strange in the place of a rate.
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
