"""Events that were renamed since the kept journals were recorded, before any release: a table, and how it is applied.

The seven kinds of boundary orders had three types of events each, with the fields of the order. Now there are
OrderGiven, OrderActed and OrderAborted with the order inside. The journals' own bytes stay as runs have written them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

STAMP = ("wall", "mono", "cause", "root", "actor")
# Former type -> the order that it gave. All fields but stamp, id and why are the order's.
GIVEN = {
    "RateOrdered": "SetRate",
    "HyperparametersOrdered": "SetHyperparameters",
    "SeedMoveOrdered": "MoveSeed",
    "StrategyStateGiven": "KeepStrategyState",
    "MasksOrdered": "MaskUnits",
    "MasksReleaseOrdered": "ReleaseMasks",
    "CompactionOrdered": "CompactModel",
}
ABORTED = {
    "RateOrderAborted": "SetRate",
    "HyperparametersAborted": "SetHyperparameters",
    "SeedMoveAborted": "MoveSeed",
    "StrategyStateDropped": "KeepStrategyState",
    "MasksAborted": "MaskUnits",
    "MasksReleaseAborted": "ReleaseMasks",
    "CompactionAborted": "CompactModel",
}
# Former type -> the order that acted, the type of its outcome, and the fields of that.
ACTED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "RateChanged": ("SetRate", "RateSet", ("before",)),
    "HyperparametersChanged": ("SetHyperparameters", "", ()),
    "SeedMoved": ("MoveSeed", "SeedMove", ("parameters_added", "measure", "epochs", "validation_loss", "source")),
    "StrategyStateKept": ("KeepStrategyState", "", ()),
    "MasksApplied": (
        "MaskUnits",
        "Masking",
        (
            *("pinned", "accuracy_before", "parameters", "pruned_parameters", "model_hash"),
            *("accuracy_now", "accuracy_masked", "loss_before"),
        ),
    ),
    "MasksReleased": ("ReleaseMasks", "MasksLifted", ("parameters",)),
    "ModelCompacted": (
        "CompactModel",
        "Compaction",
        (
            *("channels", "parameters_before", "parameters", "bytes_before", "bytes"),
            *("step_s_before", "step_s", "difference"),
        ),
    ),
}
# What an order without its OrderGiven has for the fields that it needs: in the slice of what was said, for example.
_NEEDED: dict[str, dict[str, Any]] = {
    "SetRate": {"value": 0.0},
    "MaskUnits": {"units": {}, "sha256": ""},
    "CompactModel": {"units": {}},
    "KeepStrategyState": {"epoch": 0, "state": b""},
    "SetHyperparameters": {"values": {}},
}
_FIELDS = {"SetRate": {"rate": "value"}, "MoveSeed": {"germination": "number"}}


class Given(NamedTuple):
    """An order that was given, by whom, and why."""

    order: dict[str, Any]
    by: str = ""
    reason: str = ""


class Renamer:
    """Names events anew, one after the other: how an order ended did not say again what was ordered."""

    def __init__(self) -> None:
        self.orders: dict[int, Given] = {}

    def event(self, fields: dict[str, Any], seq: int = 0) -> dict[str, Any]:
        """The event under its present name."""
        kind = fields["type"]
        stamp = {name: fields[name] for name in STAMP if name in fields}
        rest = {name: value for name, value in fields.items() if name not in (*STAMP, "type")}
        if kind in GIVEN:
            return {"type": "OrderGiven", **stamp, **self._given(GIVEN[kind], rest, stamp, seq)}
        if kind in ACTED:
            return {"type": "OrderActed", **stamp, **self._acted(*ACTED[kind], rest, stamp)}
        if kind in ABORTED:
            known = self.orders.get(stamp.get("cause", 0))
            why = rest.pop("why", "")
            order = {"type": ABORTED[kind], **_NEEDED.get(ABORTED[kind], {}), **rest}
            return {"type": "OrderAborted", **stamp, "order": known.order if known else order, "why": why}
        return fields

    def _given(self, order: str, rest: dict[str, Any], stamp: dict[str, Any], seq: int) -> dict[str, Any]:
        own = {name: rest.pop(name) for name in ("id", "why") if name in rest}
        given, actor = {"type": order, **rest}, stamp.get("actor") or {}
        self.orders[seq] = Given(given, actor.get("program", ""), actor.get("reason", ""))
        return {"order": given, **own}

    def _acted(
        self, order: str, outcome: str, names: tuple[str, ...], rest: dict[str, Any], stamp: dict[str, Any]
    ) -> dict[str, Any]:
        known = self.orders.get(stamp.get("cause", 0))
        event = {name: rest.pop(name) for name in ("applied_before_step", "number")}
        by, reason = known[1:] if known else ("", "")
        by, reason = rest.pop("by", by), rest.pop("reason", reason)
        found = {name: rest.pop(name) for name in names if name in rest}
        own = _FIELDS.get(order, {})
        said = {own.get(name, name): value for name, value in rest.items()}
        event["order"] = {**(known.order if known else _NEEDED.get(order, {})), "type": order, **said}
        if outcome:
            event["outcome"] = {"type": outcome, **found}
        return {**event, "by": by, "reason": reason}


class Renamed(NamedTuple):
    """A journaled event under its present name."""

    seq: int
    event: msgspec.Raw


def renamed(records: Iterable[Any]) -> Iterator[Any]:
    """Yield the records of a kept journal, from its first event on; marks as they are."""
    renamer = Renamer()
    for record in records:
        if not hasattr(record, "event"):
            yield record
            continue
        fields = renamer.event(msgspec.msgpack.decode(record.event), record.seq)
        yield Renamed(record.seq, msgspec.Raw(msgspec.msgpack.encode(fields)))
