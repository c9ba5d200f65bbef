"""`tolaria report` writes a page."""

from __future__ import annotations


def test_a_run_is_written_as_a_page(tolaria, dead_run, tmp_path):
    """One file; the answer names it and its size."""
    said = tolaria("report", dead_run, "-o", tmp_path / "run.html", "--json")

    assert said.code == 0, said.err
    text = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert said.json["size"] == len(text.encode())


def test_another_kind_of_file_is_refused(tolaria, dead_run, tmp_path):
    """The page is HTML."""
    assert tolaria("report", dead_run, "-o", tmp_path / "run.pdf").code == 2
    assert list(tmp_path.glob("run.pdf")) == []


def test_two_runs_begin_with_their_first_difference(tolaria, dead_run, tmp_path):
    """A run is the same as itself."""
    tolaria("report", dead_run, dead_run, "-o", tmp_path / "two.html")

    assert "same: all" in (tmp_path / "two.html").read_text(encoding="utf-8")
