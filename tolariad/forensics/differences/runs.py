"""The first point at which two runs differ, what differs there, and what the journals say about the reason.

Promises: the answer is the earliest record, in the order in which the training made them, that is not the same in both
runs. It fails closed: if a record cannot be read or compared, the runs are not called equal.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, Final

import msgspec

from journal.reader import Reader
from tolariad.core import messages as m
from tolariad.core.calc.settings.changes import is_announced
from tolariad.forensics.differences.bisection import common_start
from tolariad.forensics.differences.contexts import Differing, Part, context_of, differing
from tolariad.forensics.differences.digests import Place, first_differing
from tolariad.forensics.differences.records import Acted, Record, Walk, equal_steps, is_equal
from tolariad.forensics.links import causes_of, entry_at, link_of
from tolariad.forensics.moment import end_of

# The field of a difference in the tensors of a run begins with this.
DIGEST_OF: Final = "digest of "
# How many records after the first difference are searched for the same place.
_WINDOW: Final = 1000
# So many steps are compared at once at most; where none were equal, the next so many one by one.
_AT_ONCE: Final = 1024
_ONE_BY_ONE: Final = 64
# Orders that come when an analysis or a strategy has ended: that takes as long as the machine lets it.
_TIMED: Final = ("MaskUnits", "CompactModel", "MoveSeed")
_BEGINS_STAGE: Final = m.BeginStage.__name__


class Verdict(enum.Enum):
    """How two runs differ first.

    `config`, `data`: their configuration or their data differ, which explains everything after it; a configuration also
    if one run alone changed it under way. `value`: the same
    record has another value. `missing`, `extra`: run B lacks a record that run A has, or has one more. `order`: the
    same records come in another order. `incomparable`: nothing can be said.
    """

    SAME = "same"
    CONFIG = "config"
    DATA = "data"
    VALUE = "value"
    MISSING = "missing"
    EXTRA = "extra"
    ORDER = "order"
    INCOMPARABLE = "incomparable"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first record that differs, by its sequence number in each run (None: it has none).

    `place`: its type and place in the training. `field`, `a`, `b`: the first value that differs, if one does. `timed`:
    an order that acted when a computation beside training had ended. `keys`: those of the configuration that one run
    alone changed under way, which announced this stage.
    """

    kind: Verdict
    place: tuple[str | int, ...]
    seq_a: int | None
    seq_b: int | None
    field: str = ""
    a: Any = None
    b: Any = None
    timed: bool = False
    keys: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `equal`: so many records of both runs are the same. `steps_a`, `steps_b`: their last steps.

    `context`: every condition that differs. `not_compared`: why some values or records could not be compared.
    """

    verdict: Verdict
    first: Difference | None
    equal: int
    steps_a: int
    steps_b: int
    context: tuple[Differing, ...] = ()
    not_compared: tuple[str, ...] = ()


def compare_runs(a: Reader, b: Reader) -> Comparison:
    """Compare two runs. Raises JournalError, ReplayError: a journal is damaged or cannot be folded."""
    start_a, start_b = common_start(a, b)
    if start_a.boundary.digest != start_b.boundary.digest:
        # An order acted before this place in one run alone, without a trace in the steps up to here. Look from the
        # beginning: the orders are part of no mark.
        start_a = start_b = type(start_a)()
    walks = Walk(a, start_a), Walk(b, start_b)
    not_compared: list[str] = []
    first = _first_difference(*walks, not_compared)
    ends = end_of(a), end_of(b)
    first = _in_tensors(a, b, first, Place(ends[0].seq, ends[1].seq)) or _announced(a, b, first)
    context = differing(context_of(a, walks[0].last_state), context_of(b, walks[1].last_state))
    unreadable = [f"run {name}: {why}" for name, walk in zip("AB", walks, strict=True) for why in walk.incomparable]
    not_compared += unreadable
    return Comparison(
        verdict=_verdict(first, context, is_readable=not not_compared),
        first=first,
        equal=walks[0].taken,
        steps_a=ends[0].step,
        steps_b=ends[1].step,
        context=tuple(context),
        not_compared=tuple(dict.fromkeys(not_compared)),
    )


def _in_tensors(a: Reader, b: Reader, first: Difference | None, ends: Place) -> Difference | None:
    """Return a difference of the tensors from before the first record that differs; None if there is none."""
    if first is not None and (first.seq_a is None or first.seq_b is None or first.kind is not Verdict.VALUE):
        return None
    before = ends if first is None else Place(first.seq_a or 0, first.seq_b or 0)
    found = first_differing(a, b, before)
    if found is None:
        return None
    return Difference(
        kind=Verdict.VALUE,
        place=("ParametersDigested", found.branch, found.step),
        seq_a=found.seqs.a,
        seq_b=found.seqs.b,
        field=f"{DIGEST_OF}{found.tensor}",
        a=f"{found.a:016x}",
        b=f"{found.b:016x}",
    )


def _announced(a: Reader, b: Reader, first: Difference | None) -> Difference | None:
    """Return the difference, with the keys whose change announced it if it is a stage of one run alone."""
    if first is None or first.place[:2] != ("OrderActed", _BEGINS_STAGE) or first.kind is Verdict.VALUE:
        return first
    reader, seq = (a, first.seq_a) if first.seq_a is not None else (b, first.seq_b)
    acted = entry_at(reader, seq or 0)
    causes = causes_of(reader, link_of(acted)) if acted is not None else ()
    keys = next((one.fields.get("keys") for one in causes if one.fields.get("type") == "ConfigChanged"), None)
    named = filter(is_announced, map(str, keys if isinstance(keys, list) else ()))
    return msgspec.structs.replace(first, keys=tuple(named))


def _verdict(first: Difference | None, context: list[Differing], *, is_readable: bool) -> Verdict:
    if first is None:
        return Verdict.SAME if is_readable else Verdict.INCOMPARABLE
    if first.keys or any(one.part is Part.CONFIGURATION and one.matters for one in context):
        return Verdict.CONFIG
    return Verdict.DATA if any(one.part is Part.DATA for one in context) else first.kind


def _first_difference(a: Walk, b: Walk, not_compared: list[str]) -> Difference | None:
    """Return the first difference; both walks end before it. None: both runs are the same, and end at one place."""
    found, one_by_one = None, 0
    while True:
        # Runs that differ in a value that is left out of the comparison have no equal steps: then not for each of them.
        if not one_by_one and not _pass_equal(a, b):
            one_by_one = _ONE_BY_ONE
        one_by_one = max(0, one_by_one - 1)
        one, other = next(iter(a.ahead(1)), None), next(iter(b.ahead(1)), None)
        if one is None or other is None or one.record.place != other.record.place:
            break
        if (found := _in_values(one.record, other.record, not_compared)) is not None:
            break
        a.take()
        b.take()
    steps = [_step_of(each.record) for each in (one, other) if each is not None]
    step = min((each for each in steps if each is not None), default=None)
    if (order := _order_before(a.orders, b.orders, step)) is not None:
        return order
    if one is None and other is None:
        return None
    if one is None or other is None:
        kind = Verdict.MISSING if other is None else Verdict.EXTRA
        record = (one or other).record  # type: ignore[union-attr]  # not both are None
        seqs = (record.seq, None) if other is None else (None, record.seq)
        return Difference(kind=kind, place=record.place, seq_a=seqs[0], seq_b=seqs[1])
    return found or _by_place(a, b)


def _pass_equal(a: Walk, b: Walk) -> int:
    """Pass over steps that are the same in both runs, many at once. Return how many these are."""
    if a.state.progress.metric_names != b.state.progress.metric_names:
        return 0
    one, other = a.steps_ahead(_AT_ONCE), b.steps_ahead(_AT_ONCE)
    count = equal_steps(one, other)
    a.pass_over(one[:count])
    b.pass_over(other[:count])
    return count


def _in_values(one: Record, other: Record, not_compared: list[str]) -> Difference | None:
    """Return the first value in which two records of the same place differ, or None."""
    for name in dict.fromkeys((*one.values, *other.values)):
        mine, others = one.values.get(name), other.values.get(name)
        if is_equal(mine, others):
            continue
        if name == "grad_norm" and m.NOT_MEASURED in (mine, others):
            not_compared.append("the gradient norm of some steps was measured in one run alone")
        elif name not in one.values or name not in other.values:
            not_compared.append(f"one run alone has the {name}")
        elif name == "data" and 0 in (mine, others):
            not_compared.append("the data of some steps have a digest in one run alone")
        else:
            kind = Verdict.DATA if name == "data" else Verdict.VALUE
            return Difference(kind=kind, place=one.place, seq_a=one.seq, seq_b=other.seq, field=name, a=mine, b=others)
    return None


def _by_place(a: Walk, b: Walk) -> Difference:
    """Tell whether the next record of a run is in the other run too, a little later."""
    (one, *_), (other, *_) = mine, others = a.ahead(_WINDOW), b.ahead(_WINDOW)
    in_b = any(one.record.place == each.record.place for each in others)
    in_a = any(other.record.place == each.record.place for each in mine)
    record, lacked = one.record, other.record
    if in_b and in_a:
        return Difference(kind=Verdict.ORDER, place=record.place, seq_a=record.seq, seq_b=lacked.seq)
    # Steps on another branch are the consequence of the rollback that opened it.
    is_extra = in_b or (not in_a and record.place[0] == "StepCompleted" and lacked.place[0] != "StepCompleted")
    if is_extra:
        return Difference(kind=Verdict.EXTRA, place=lacked.place, seq_a=None, seq_b=lacked.seq)
    return Difference(kind=Verdict.MISSING, place=record.place, seq_a=record.seq, seq_b=None)


def _order_before(a: list[Acted], b: list[Acted], step: int | None) -> Difference | None:
    """Return the first boundary order that is not the same in both runs and acted at or before this step.

    `step` None: at the end of both runs.
    """
    for one, other in zip_longest(*(_until(orders, step) for orders in (a, b))):
        if one is not None and other is not None and one.is_same(other):
            continue
        kind = Verdict.EXTRA if one is None else Verdict.MISSING if other is None else Verdict.VALUE
        shown = one or other
        field, values = _first_field(one, other)
        return Difference(
            kind=kind,
            place=("OrderActed", shown.kind, shown.before_step),
            seq_a=one.seq if one is not None else None,
            seq_b=other.seq if other is not None else None,
            field=field,
            a=values[0],
            b=values[1],
            timed=all(each is None or each.kind in _TIMED for each in (one, other)) and _moved(one, other),
        )
    return None


def _until(orders: list[Acted], step: int | None) -> Iterator[Acted]:
    return (one for one in orders if step is None or one.before_step <= step)


def _moved(one: Acted | None, other: Acted | None) -> bool:
    """Return whether the difference may come from the time that a computation took: the order, or its place."""
    return one is None or other is None or one.before_step != other.before_step


def _first_field(one: Acted | None, other: Acted | None) -> tuple[str, tuple[Any, Any]]:
    if one is None or other is None:
        return "", (None, None)
    if one.kind != other.kind:
        return "order", (one.kind, other.kind)
    if one.before_step != other.before_step:
        return "before_step", (one.before_step, other.before_step)
    name = next((name for name in one.does if one.does[name] != other.does.get(name)), "number")
    return name, (one.does.get(name, one.number), other.does.get(name, other.number))


def _step_of(record: Record) -> int | None:
    """Return the step at or before whose update an order must have acted to come before the record; None: any."""
    kind, *numbers = record.place
    has_step = kind in ("StepCompleted", "StepSkipped", "EpochFinished", "ValidationFinished")
    return int(numbers[1]) if has_step else None
