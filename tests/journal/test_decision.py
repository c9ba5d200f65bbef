"""The table that decides whether an end is torn or damaged."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from journal.errors import Damage
from journal.tail import CASES, Decision, TailFacts, decide

FACTS = [field.name for field in msgspec.structs.fields(TailFacts)]
# The facts at the end of an intact journal, and those after a torn write.
AN_END = dict.fromkeys(FACTS, False) | {"newest": True, "rest_zero": True}
A_TORN_WRITE = AN_END | {"rest_zero": False}


def test_every_combination_of_facts_matches_exactly_one_case():
    """For each of the 2 to the 11 combinations exactly one row decides."""
    combinations = list(itertools.product((False, True), repeat=len(FACTS)))
    matches = [
        [case.letter for case in CASES if case.matches(TailFacts(**dict(zip(FACTS, values, strict=True))))]
        for values in combinations
    ]

    assert len(combinations) == 2048
    assert {len(found) for found in matches} == {1}
    assert {letter for found in matches for letter in found} == {case.letter for case in CASES}


def test_a_torn_write_is_cut_only_if_nothing_speaks_against_it():
    """Only the facts of case M lead to a cut. If one relevant fact changes, the decision changes."""
    torn = [
        values
        for values in itertools.product((False, True), repeat=len(FACTS))
        if decide(TailFacts(**dict(zip(FACTS, values, strict=True)))).decision is Decision.TORN
    ]
    free = {"linked_end", "voided"}  # they speak of a later segment, of which there is none

    assert len(torn) == 2 ** len(free)
    assert all(
        {name: v for name, v in zip(FACTS, values, strict=True) if name not in free}
        == {name: v for name, v in A_TORN_WRITE.items() if name not in free}
        for values in torn
    )


@pytest.mark.parametrize(
    ("change", "decision", "damage"),
    [
        ({}, Decision.TORN, None),
        ({"newer": True}, Decision.TOO_NEW, None),
        ({"resized": True}, Decision.DAMAGED, Damage.LENGTH),
        ({"misplaced": True}, Decision.DAMAGED, Damage.MISPLACED),
        ({"unchained": True}, Decision.DAMAGED, Damage.CHAIN),
        ({"newest": False}, Decision.DAMAGED, Damage.FRAME),
        ({"newest": False, "linked_end": True, "rest_zero": True}, Decision.END, None),
        ({"newest": False, "linked_end": True, "voided": True}, Decision.END, None),
        ({"newest": False, "linked_end": True}, Decision.DAMAGED, Damage.STRAY_BYTES),
        ({"rest_zero": True}, Decision.END, None),
        ({"sealed": True}, Decision.DAMAGED, Damage.STRAY_BYTES),
        ({"later_intact": True}, Decision.DAMAGED, Damage.FRAME),
        ({"stray": True}, Decision.DAMAGED, Damage.STRAY_BYTES),
    ],
)
def test_a_torn_write_with_one_fact_changed(change, decision, damage):
    """Each case of the table is reached from a torn write by changing the facts that make it."""
    case = decide(TailFacts(**(A_TORN_WRITE | change)))

    assert (case.decision, case.damage) == (decision, damage)


def test_the_table_in_the_docstring_is_the_table_in_the_code():
    """The docstring lists the same letters and decisions in the same order."""
    source = Path(__file__).parents[2].joinpath("journal/tail.py").read_text(encoding="utf-8")
    rows = [
        line.split()[:2]
        for line in source.splitlines()
        if line.startswith("    ") and line.split()[:1] and len(line.split()[0]) == 1 and line.split()[0].isupper()
    ]

    assert rows == [[case.letter, case.decision.name] for case in CASES]
