"""The runs with incidents: each question of docs/forensics.md has its answer on the run that really had it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.examples.questions import missing, questions
from tests.house.tree import ROOT

pytestmark = pytest.mark.torture
_ASK = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make all runs, as the page says."""
    folder = tmp_path_factory.mktemp("incidents")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "examples.incidents", "."]
    told = subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, text=True).stdout
    return folder, told


@pytest.fixture
def asked(made):
    """Return a function: what a command of `tolaria` prints, in the folder of the runs."""

    def ask(*words, code=None):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "1000"}
        done = subprocess.run(
            [*_ASK, *words], env=environment, cwd=made[0], capture_output=True, check=False, text=True
        )
        assert code is None or done.returncode == code, (words, done.stderr)
        return done.stdout + ("" if "--json" in words else done.stderr)

    return ask


@pytest.mark.parametrize("question", questions(), ids=lambda one: f"{one.number}: {' '.join(one.words[1:4])}")
def test_each_question_is_answered(asked, made, question):
    """With the words that the page shows."""
    if "not made" in made[1] and not (made[0] / question.words[2]).is_dir():
        pytest.skip(made[1])
    for place in (made[0] / word for word in question.words if word.startswith("step-")):
        shutil.rmtree(place, ignore_errors=True)
    answer = asked(*question.words[1:])

    assert missing(question.shown, answer) == [], answer


def test_the_rows_of_the_incidents_are_named(asked):
    """The wrong items of the data are among those of the batch, by index and as the task shows them."""
    told = json.loads(asked("why", "night", "nan", "--show", "--json", code=0))

    assert 17 in told["rows"]["rows"]


def test_each_incident_is_explained(asked, made):
    """Every word of `why` that has an answer in one of the runs has one that names its events."""
    for run in sorted(one.name for one in made[0].iterdir() if (one / "journal").is_dir()):
        for topic, event in json.loads(asked("why", run, "--json", code=0))["topics"].items():
            told = json.loads(asked("why", run, topic, "--json", code=0))
            assert told["event"]["seq"] == event["seq"] or topic == "rank", (run, topic)


def test_the_pruned_run_became_smaller(asked, made):
    """Its masks passed their window, and a compaction removed them."""
    if "pruned: not made" in made[1]:
        pytest.skip(made[1])
    told = json.loads(asked("why", "pruned", "compaction", "--json", code=0))["event"]

    assert told["type"] == "OrderActed"
    assert 0 < told["outcome"]["parameters"] < told["outcome"]["parameters_before"]
