"""The rows of the mutation table, and short names for tests that many rows name."""

from __future__ import annotations

from typing import NamedTuple

from tests.journal.faults.mutating import Change


class Mutation(NamedTuple):
    """A rule that is removed: its marker, the change, and the test that must fail (file and name in tests/)."""

    rule: str
    marker: str
    change: Change
    killer: str


def row(rule: str, marker: str, change: Change, killer: str) -> Mutation:
    """Return one row of the journal: its test is in tests/journal."""
    return Mutation(rule, marker, change, f"journal/{killer}")


FAULTS = "test_faults.py::"
DAMAGE = "test_damage.py::"
WRITER = "test_writer.py::"
PACKING = "test_packing.py::"
PACKED = "test_packed.py::"
CRASH = "faults/test_recorded.py::test_a_crash_at_any_call_loses_nothing_acknowledged"
MISPLACED = "faults/test_misplaced.py::test_what_belongs_elsewhere_is_refused_by_name"
ELSEWHERE = "faults/test_misplaced.py::test_a_whole_frame_elsewhere_is_misplaced_for_whoever_looks"
TAMPER = "faults/test_tamper.py::test_an_edit_with_good_checksums_is_found"
BOUNDS = "faults/test_bounds.py::"
SEALED = "test_sealed.py::"
LOSING = "test_losing.py::"
LOSS_CUT = f"{LOSING}test_a_power_cut_at_any_operation_leaves_a_refusal_or_a_gap_that_is_told"
