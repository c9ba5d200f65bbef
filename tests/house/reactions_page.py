"""The page docs/reactions.md, printed from the table of reactions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tests.house.wrapping import wrapped
from tolariad.core import messages as m
from tolariad.core.engine import Row
from tolariad.core.rules.table.orders import ORDERS
from tolariad.core.rules.table.reactions import TABLE

_HEAD = """# What follows from what

Generated from `tolariad/core/rules/table/reactions.py`, which gathers every row, by `make docs`. Do not edit.

An input or a report runs the rules of its row, which record *facts*. Every recorded event is then offered to the rules
of its own row, depth first. The events that a rule records are offered before the next rule of the same event is asked.
So a rule sees every consequence of the rules above it. The cause of an event, as `tolaria why` shows it, is the event
that it reacted to.

*May record* lists every event that a row can lead to directly; follow it from row to row. No event leads back to
itself: a test holds that, and another that no rule records anything else. The events are described in
[events.md](events.md).
"""


def reactions_page() -> str:
    """Return the whole page."""
    inputs = [row for row in TABLE if not issubclass(row.kind, m.Event | m.Message)]
    reports = [row for row in TABLE if issubclass(row.kind, m.Message)]
    events = [row for row in TABLE if issubclass(row.kind, m.Event)]
    parts = [
        _HEAD,
        _section("Inputs: what reaches the recorder from outside", inputs),
        _orders(),
        _section("Reports of the trainer", reports),
        _section("Events", events),
    ]
    return wrapped("\n".join(parts))


def _section(title: str, rows: list[Row]) -> str:
    return "\n".join([f"## {title}\n", *(_row(row) for row in rows)])


def _row(row: Row) -> str:
    rules = "\n".join(f"{number}. {_rule(rule)}" for number, rule in enumerate(row.rules, 1))
    makes = (
        ", ".join(f"`{name}`" for name in sorted(kind.__name__ for kind in row.makes)) or "nothing; it only has effects"
    )
    return f"### {row.kind.__name__}\n\n{rules}\n\nMay record: {makes}.\n"


def _rule(rule: Callable[..., Any]) -> str:
    rule = inspect.unwrap(rule)
    module, _, name = rule.__qualname__.partition(".")[0], None, rule.__name__
    place = (
        f"{rule.__module__.removeprefix('tolariad.core.')}.{name if '<locals>' not in rule.__qualname__ else module}"
    )
    first = (rule.__doc__ or "").strip().splitlines()[:1]
    return f"`{place}`: {first[0]}" if first else f"`{place}`"


def _orders() -> str:
    rows = "\n".join(f"| `{kind.__name__}` | {_rule(order.rule)} |" for kind, order in ORDERS.items())
    return f"## Orders: how a command is validated\n\n| command | rule |\n|---|---|\n{rows}\n"
