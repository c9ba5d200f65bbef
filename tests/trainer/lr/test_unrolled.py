"""The comparison with unrolled code finds every change, for few and for many groups."""

from __future__ import annotations

import pytest
import torch

from tolariad.trainer.lr.unrolled import for_groups

COUNTS = (1, 2, 3, 4, 7, 8, 9, 65)


def equal_rate(groups, at):
    groups[at]["lr"] = float(str(groups[at]["lr"]))


def tensor_of_the_rate(groups, at):
    groups[at]["lr"] = torch.tensor(groups[at]["lr"], dtype=torch.float64)


def equal_group(groups, at):
    groups[at] = dict(groups[at])


def equal_list(groups, at):
    groups[at]["params"] = list(groups[at]["params"])


def one_parameter_more(groups, at):
    groups[at]["params"].append(torch.ones(3))


def another_parameter(groups, at):
    groups[at]["params"][1] = torch.ones(3)


def no_rate(groups, at):
    del groups[at]["lr"]


def no_group(groups, at):
    groups[at] = None


def one_group_less(groups, at):
    del groups[at]


def one_group_more(groups, at):
    groups.insert(at, dict(groups[at]))


def two_in_another_order(groups, at):
    groups[at - 1], groups[at] = groups[at], groups[at - 1] if len(groups) > 1 else None


CHANGES = (
    equal_rate,
    tensor_of_the_rate,
    equal_group,
    equal_list,
    one_parameter_more,
    another_parameter,
    no_rate,
    no_group,
    one_group_less,
    one_group_more,
    two_in_another_order,
)


def made(count):
    """Return so many groups, the functions for them, and their rates."""
    groups = [{"params": [torch.ones(3), torch.ones(3)], "lr": 0.0} for _ in range(count)]
    lists = [group["params"] for group in groups]
    look, put = for_groups(list(groups), lists, [list(params) for params in lists])
    row = tuple(0.1 / (number + 1) for number in range(count))
    put(row)
    return groups, look, put, row


@pytest.mark.parametrize("count", COUNTS)
def test_what_was_put_is_found(count):
    """The written rates are accepted, and after the next row the old ones are not."""
    groups, look, put, row = made(count)
    assert [group["lr"] for group in groups] == list(row)
    assert look(groups, row) is True
    following = tuple(rate / 2 for rate in row)
    put(following)
    assert look(groups, following) is True
    assert look(groups, row) is False


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("count", COUNTS)
def test_every_change_of_every_group_is_seen(count, change):
    """Equal but different objects are found too."""
    for at in {*range(min(count, 9)), count - 1}:
        groups, look, _, row = made(count)
        change(groups, at)
        assert look(groups, row) is False, f"group {at} of {count}"


def test_no_groups_are_as_they_were():
    """An additional group is found."""
    look, put = for_groups([], [], [])
    put(())
    assert look([], ()) is True
    assert look([{"params": [], "lr": 0.1}], ()) is False
