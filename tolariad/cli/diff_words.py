"""What `tolaria diff` says of two runs, as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tolariad.core.calc.text.phrases import counted, listed
from tolariad.core.calc.text.plain import safe
from tolariad.forensics.differences.contexts import Part
from tolariad.forensics.differences.records import METRIC, bits_of
from tolariad.forensics.differences.runs import Comparison, Difference, Verdict

_FIELDS: Final = {
    "data": "the digest of its batches",
    "grad_norm": "the gradient norm",
    "lr": "the first learning rate",
    "rates": "the digest of the learning rates",
    "before_step": "the update before which it acted",
}


def told(found: Comparison, names: Sequence[str]) -> str:
    """Return what the verdict means for these two runs."""
    first, (a, b) = found.first, map(safe, names)
    if found.verdict is Verdict.SAME:
        return f"all {counted(found.equal, 'record')} of both runs are equal, up to step {found.steps_a}."
    if first is None:
        return f"{counted(found.equal, 'record')} agree, but not everything could be compared."
    if first.keys:
        name = a if first.seq_a is not None else b
        return (
            f"the configuration of {name} changed under way ({listed(map(safe, first.keys))}). That first shows after "
            f"{counted(found.equal, 'equal record')}: {_first(first, a, b)}"
        )
    where = f"after {counted(found.equal, 'equal record')}"
    if found.verdict in (Verdict.CONFIG, Verdict.DATA) and found.verdict is not first.kind:
        part = Part.CONFIGURATION if found.verdict is Verdict.CONFIG else Part.DATA
        keys = [safe(one.name) for one in found.context if one.part is part and one.matters]
        what = "the configurations differ" if part is Part.CONFIGURATION else "the data differ"
        return f"{what} ({listed(keys)}). That first shows {where}: {_first(first, a, b)}"
    return f"{where}, {_first(first, a, b)}"


def _first(first: Difference, a: str, b: str) -> str:
    what = _place(first)
    match first.kind:
        case Verdict.MISSING:
            return f"{b} lacks {what}, which {a} has."
        case Verdict.EXTRA:
            return f"{b} has {what}, which {a} lacks."
        case Verdict.ORDER:
            return f"{what} of {a} comes in another order in {b}."
        case _:
            name = _FIELDS.get(first.field, f"the {safe(first.field)}")
            return f"{what} differs: {name} is {_value(first.a, first.b)} in {a} and {_value(first.b, first.a)} in {b}."


def _place(first: Difference) -> str:
    """Return the record in words."""
    kind, *at = first.place
    match kind:
        case "StepCompleted":
            return f"step {at[1]}" + (f" of branch {at[0]}" if at[0] else "")
        case "ParametersDigested":
            return f"the state after step {at[1]}" + (f" of branch {at[0]}" if at[0] else "")
        case "StepSkipped":
            return f"the skipped batch {at[3]} of epoch {at[2]}, before step {at[1]}"
        case "EpochFinished":
            return f"the end of epoch {at[0]}"
        case "ValidationFinished":
            return f"the validation of epoch {at[0]}" + (f" after step {at[1]}" if at[2] else "")
        case "RolledBack":
            return f"a rollback to step {at[1]}, which opened branch {at[0]}"
        case "OrderActed":
            return f"the order {at[0]} before step {at[1]}"
        case _:
            return f"{kind} {' '.join(map(str, at))}"


def _value(value: Any, other: Any) -> str:
    """Return a value; also the bits of a number that looks the same as the other one in six digits."""
    if not isinstance(value, float):
        return "absent" if value is None else safe(str(value))[:80]
    alike = isinstance(other, float) and f"{value:.6g}" == f"{other:.6g}"
    return f"{value!r} (bits {bits_of(value)})" if alike and math.isfinite(value) else f"{value:.6g}"


def about(found: Comparison, names: Sequence[str]) -> Iterator[str]:
    """Yield what explains the difference, or where to look for the reason."""
    first = found.first
    if first is None or found.verdict in (Verdict.SAME, Verdict.INCOMPARABLE):
        return
    if found.verdict is Verdict.CONFIG and not first.keys:
        return
    if first.timed:
        yield (
            "The order came when an analysis or a strategy had ended, and that takes as long as the machine lets it. "
            "Up to here the runs differ by machine, not by arithmetic."
        )
        return
    conditions = [one for one in found.context if one.matters]
    if conditions:
        parts = listed(dict.fromkeys(one.part.value for one in conditions))
        yield f"The runs were made under other conditions: {parts}. Below is what differs."
    elif first.kind is Verdict.VALUE and first.place[0] != "OrderActed":
        step = first.place[2] if first.place[0] in ("StepCompleted", "ParametersDigested") else None
        again = f" `tolaria reexecute {safe(names[0])} --from {step} --to {step}` makes it again." if step else ""
        yield (
            "Nothing that the journals record explains it: configuration, data, code, libraries and host are the "
            f"same. Either the program does not repeat itself, or a machine computed wrongly.{again}"
        )
    elif first.field.startswith(METRIC):
        yield "Loss and rates agree there, so a metric of the task does not repeat itself."


__all__ = ["about", "told"]
