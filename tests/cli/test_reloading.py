"""`tolaria reload`: the keys that have changed, or why none has."""

from __future__ import annotations

from tests.control.fakes import Served
from tolariad.control.peer import Operators


def test_what_has_changed_is_shown(tolaria, live_run):
    """For people, and as JSON."""
    folder = live_run.path.parent

    assert tolaria("reload", folder).out == "reloaded: logging.level\n"
    assert tolaria("reload", "-r", folder, "--json").json == {"changed": ["logging.level"]}


def test_a_refusal_says_why(tolaria, live_run):
    """It is an error of the command, as of an order."""
    live_run.recorder.wrong_configuration = "the configuration was not reloaded: epochs cannot change"
    said = tolaria("reload", live_run.path.parent)

    assert said.code == tolaria("resume", live_run.path.parent).code
    assert said.out == ""
    assert "epochs cannot change" in said.err


def test_only_operators_may_reload(tolaria, recorder, run_dir):
    """Who may only read gets the code of a permission."""
    with Served(recorder, run_dir, allow=Operators(frozenset({12345}))):
        denied, also = tolaria("reload", run_dir), tolaria("pause", run_dir)

    assert denied.code == also.code
    assert denied.out == ""
