"""Events and steps as Parquet tables, and the queries of the page."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import pytest

from tests.forensics.differences.written import events_of_a_run, step_at, with_step, write
from tolariad.core import messages as m
from tolariad.forensics.parquet import write_events, write_steps

duckdb = pytest.importorskip("duckdb", reason="duckdb (extra `forensics`) is not installed")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "forensics.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Both tables of a run with a NaN loss, a note, a norm that was not measured, and a metric that began later."""
    folder = tmp_path_factory.mktemp("tables")
    events = with_step(events_of_a_run(folder / "made"), 7, loss=math.nan, grad_norm=m.NOT_MEASURED)
    at = step_at(events, 20)
    note = m.NoteAdded(text='it\'s "here"', actor=m.Actor(uid=1000, program="tolaria", reason="a, b"))
    named = m.MetricsNamed(names=("Loss", "row", "a'b\"c"))
    write(folder / "journal", with_step([*events[:at], note, named, *events[at:]], 25, metrics=(1.75, 2.0, math.inf)))
    counts = (
        write_events(folder / "journal", folder / "events.parquet"),
        write_steps(folder / "journal", folder / "steps.parquet"),
    )
    assert counts == (len(events) + 2, 30)
    return folder


def asked(place, query):
    """Return the rows of a query, in the folder of the tables."""
    with duckdb.connect() as connection:
        before = Path.cwd()
        os.chdir(place)
        try:
            return connection.execute(query).fetchall()
        finally:
            os.chdir(before)


def test_every_event_has_its_row(place):
    """In order, with the actor, the sentence, and all fields as JSON."""
    rows = asked(place, "SELECT seq, actor, payload->>'text' FROM 'events.parquet' WHERE type = 'NoteAdded'")

    assert len(rows) == 1
    assert rows[0][1:] == ("(by tolaria, uid 1000: a, b)", 'it\'s "here"')
    count, last = asked(place, "SELECT count(*), max(seq) FROM 'events.parquet'")[0]
    assert count == last


def test_numbers_that_are_not_finite_and_late_columns_come_out_right(place):
    """NaN is NaN, a norm that nobody measured is NULL, and a metric that began at step 25 has its column."""
    assert asked(place, "SELECT step FROM 'steps.parquet' WHERE isnan(loss)") == [(7,)]
    assert asked(place, "SELECT step FROM 'steps.parquet' WHERE grad_norm IS NULL") == [(7,)]
    late = asked(
        place, """SELECT "Loss_2", "row_2", "a'b""c" FROM 'steps.parquet' WHERE step IN (1, 25) ORDER BY step"""
    )
    assert all(math.isnan(value) for value in late[0])
    assert late[1] == (1.75, 2.0, math.inf)


def test_the_queries_of_the_page_have_answers(place):
    """Each of them, as it stands there."""
    queries = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    assert len(queries) == 3
    answers = [asked(place, query) for query in queries]
    assert answers[0][0] == ("StepCompleted", 30)
    assert [row[1] for row in answers[1]] == ["NoteAdded"]
    assert [row[0] for row in answers[2]] == [1, 2, 3]
