"""Compare and write the rates of an optimizer's groups. Every step calls both.

A loop over eight groups takes twice as long as straight code. So one, two, four and eight groups (decayed or not, body
or head, ...) have straight code; any other number uses a loop. Groups, rates and parameter lists are compared by
identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

Group = dict[str, Any]
# Return whether these are the registered groups, with these rates and their registered parameters. Never raises. A rate
# must be the very object that was written. False is no verdict: the guard then compares values, slowly, and an equal
# float is no violation.
Check = Callable[[Sequence[Group], tuple[float, ...]], bool]
# Write these rates into the groups.
Write = Callable[[tuple[float, ...]], None]

# Raised for: a wrong number of groups, a group without its keys, a group that is no dict, parameters that cannot be
# compared. Each means that the groups were changed. A `try` costs nothing while nothing is raised; to look for each
# case in advance would cost at every step.
_NOT_AS_THEY_WERE: Final = (KeyError, TypeError, ValueError, RuntimeError)


def for_groups(own: Sequence[Group], lists: list[list[Any]], contents: list[list[Any]]) -> tuple[Check, Write]:
    """Return the check and the write function for the groups `own`.

    `lists` are the groups' `params` lists; `contents` are copies of them. Contents are compared as lists are: each
    element by identity first, then by equality.
    """
    # The functions close over the registered objects: one lookup less per group and step than through an attribute.
    return _WRITTEN_OUT.get(len(own), _any_number)(own, lists, contents)


def _any_number(own: Sequence[Group], lists: list[list[Any]], contents: list[list[Any]]) -> tuple[Check, Write]:
    def look(groups: Sequence[Group], row: tuple[float, ...]) -> bool:
        if len(groups) != len(own):
            return False
        try:
            # Indexing is faster here than zipping four sequences.
            for index, group in enumerate(groups):
                if group is not own[index] or group["lr"] is not row[index] or group["params"] is not lists[index]:
                    return False
            return lists == contents
        except _NOT_AS_THEY_WERE:
            return False

    # `row` has as many rates as there are groups: only the controller calls it, with a row that it made for them.
    def put(row: tuple[float, ...]) -> None:
        for index, group in enumerate(own):
            group["lr"] = row[index]

    return look, put


def _one(own: Sequence[Group], lists: list[list[Any]], contents: list[list[Any]]) -> tuple[Check, Write]:
    (a,), (p,) = own, lists

    def look(groups: Sequence[Group], row: tuple[float, ...]) -> bool:
        try:
            (s,) = groups
            (first,) = row
            return s is a and s["lr"] is first and s["params"] is p and lists == contents
        except _NOT_AS_THEY_WERE:
            return False

    def put(row: tuple[float, ...]) -> None:
        (a["lr"],) = row

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


# tests/trainer/lr/test_unrolled.py makes every change of every group, for each of these and for the loop.
_WRITTEN_OUT: Final = {1: _one, 2: _two, 4: _four, 8: _eight}
