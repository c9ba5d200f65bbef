"""Comparing and writing the rates of an optimizer's groups, as every step does it.

A loop over eight groups costs twice what it does. So for the numbers of groups that splitting in two makes (decayed or
not, body or head, …) both are written out; any other number has the loop. What is compared is identity: of each group, of
its rate and of its list of parameters. It must not know: optimizers, policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

Group = dict[str, Any]
# Are these the groups, with these rates, and with the parameters they had? Never raises.
Check = Callable[[Sequence[Group], tuple[float, ...]], bool]
# They have these rates from now on.
Write = Callable[[tuple[float, ...]], None]

# Another number of groups, a group without its keys or that is none, parameters that cannot be compared.
_NOT_AS_THEY_WERE: Final = (KeyError, TypeError, ValueError, RuntimeError)


def for_groups(own: Sequence[Group], lists: list[list[Any]], contents: list[list[Any]]) -> tuple[Check, Write]:
    """`look` and `put` for the groups `own`, whose `params` are `lists`, which hold what `contents` holds.

    Contents are compared as lists compare, by identity before equality.
    """
    return _WRITTEN_OUT.get(len(own), _any_number)(own, lists, contents)


def _any_number(own: Sequence[Group], lists: list[list[Any]], contents: list[list[Any]]) -> tuple[Check, Write]:
    def look(groups: Sequence[Group], row: tuple[float, ...]) -> bool:
        if len(groups) != len(own):
            return False
        try:
            # An index is cheaper here than a zip of four.
            for index, group in enumerate(groups):
                if group is not own[index] or group["lr"] is not row[index] or group["params"] is not lists[index]:
                    return False
            return lists == contents
        except _NOT_AS_THEY_WERE:
            return False

    def put(row: tuple[float, ...]) -> None:
        for index, group in enumerate(own):
            group["lr"] = row[index]

    return look, put


def _two(own: Sequence[Group], lists: list[list[Any]], contents: list[list[Any]]) -> tuple[Check, Write]:
    (a, b), (p, q) = own, lists

    def look(groups: Sequence[Group], row: tuple[float, ...]) -> bool:
        try:
            s, t = groups
            first, second = row
            return (
                (s is a and s["lr"] is first and s["params"] is p)
                and (t is b and t["lr"] is second and t["params"] is q)
                and lists == contents
            )
        except _NOT_AS_THEY_WERE:
            return False

    def put(row: tuple[float, ...]) -> None:
        a["lr"], b["lr"] = row

    return look, put


def _four(own: Sequence[Group], lists: list[list[Any]], contents: list[list[Any]]) -> tuple[Check, Write]:
    (a, b, c, d), (i, j, k, l) = own, lists  # noqa: E741 - one of four

    def look(groups: Sequence[Group], row: tuple[float, ...]) -> bool:
        try:
            p, q, r, s = groups
            first, second, third, fourth = row
            return (
                (p is a and p["lr"] is first and p["params"] is i)
                and (q is b and q["lr"] is second and q["params"] is j)
                and (r is c and r["lr"] is third and r["params"] is k)
                and (s is d and s["lr"] is fourth and s["params"] is l)
                and lists == contents
            )
        except _NOT_AS_THEY_WERE:
            return False

    def put(row: tuple[float, ...]) -> None:
        a["lr"], b["lr"], c["lr"], d["lr"] = row

    return look, put


def _eight(own: Sequence[Group], lists: list[list[Any]], contents: list[list[Any]]) -> tuple[Check, Write]:
    (a, b, c, d, e, f, g, h), (i, j, k, l, m, n, o, p) = own, lists  # noqa: E741 - one of eight

    def look(groups: Sequence[Group], row: tuple[float, ...]) -> bool:
        try:
            q, r, s, t, u, v, w, x = groups
            first, second, third, fourth, fifth, sixth, seventh, eighth = row
            return (
                (q is a and q["lr"] is first and q["params"] is i)
                and (r is b and r["lr"] is second and r["params"] is j)
                and (s is c and s["lr"] is third and s["params"] is k)
                and (t is d and t["lr"] is fourth and t["params"] is l)
                and (u is e and u["lr"] is fifth and u["params"] is m)
                and (v is f and v["lr"] is sixth and v["params"] is n)
                and (w is g and w["lr"] is seventh and w["params"] is o)
                and (x is h and x["lr"] is eighth and x["params"] is p)
                and lists == contents
            )
        except _NOT_AS_THEY_WERE:
            return False

    def put(row: tuple[float, ...]) -> None:
        a["lr"], b["lr"], c["lr"], d["lr"], e["lr"], f["lr"], g["lr"], h["lr"] = row

    return look, put


_WRITTEN_OUT: Final = {2: _two, 4: _four, 8: _eight}
