"""A program that changes its working folder is told if its run would be another one at each start."""

from __future__ import annotations

import logging

import pytest

from tolariad.library.folders import here, warn_of_another


@pytest.mark.parametrize(
    ("relative", "changed", "is_there", "says"),
    [(True, True, False, True), (True, False, False, False), (True, True, True, False), (False, True, False, False)],
    ids=["anew in another folder", "in the same folder", "it goes on", "absolute"],
)
def test_only_a_new_run_in_a_folder_that_the_program_changed_to_is_said(
    tmp_path, monkeypatch, caplog, relative, changed, is_there, says
):
    """The sentence has the whole path, and what to give instead."""
    before = here()
    if changed:
        monkeypatch.chdir(tmp_path)
    run_dir = (tmp_path if not relative else tmp_path.relative_to(tmp_path)) / "runs" / "one"
    if is_there:
        (run_dir / "journal").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        warn_of_another(run_dir, before)
    assert [f"begins in {tmp_path}/runs/one" in one for one in caplog.messages] == [True] * says
    assert all("absolute run_dir" in one for one in caplog.messages)
