"""`-n`: each test runs once and is reported, whatever happens to the fork that runs it."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests import inner_session

GOOD = """
import os, pytest, sys, warnings
@pytest.fixture(scope="module")
def once():
    print("made once", file=open("{log}", "a"))
@pytest.mark.parametrize("number", range(20))
def test_good(once, number, tmp_path):
    print(number, file=open("{log}", "a"))
def test_warns():
    warnings.warn("a word", UserWarning)
def test_skipped():
    pytest.skip("not here")
def test_place():
    assert os.getcwd() == os.environ["HOME"].removesuffix("home") + "work"
"""
BAD = """
import os, signal
def test_before():
    pass
def test_fails():
    print("said before")
    assert 1 == 2
def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)
def test_after():
    pass
"""


@pytest.fixture
def session(tmp_path):
    """Run pytest in a folder with these files, and return its exit code and what it printed."""
    return partial(inner_session.session, tmp_path)


def test_every_test_is_reported_once_also_after_a_fork_has_died(session, tmp_path):
    """With its output, its place and its duration; the next fork goes on behind the test that died."""
    log = tmp_path / "log"
    code, said = session("-n", "2", good=GOOD.format(log=log), bad=BAD)

    assert code == 1, said
    # Plugins may warn too.
    assert "2 failed, 24 passed, 1 skipped" in said
    assert "UserWarning: a word" in said
    assert sorted(log.read_text().split()) == sorted(["made", "once", *map(str, range(20))])
    assert "said before" in said
    assert "not here" in said
    assert "a word" in said
    assert re.search(r"the worker w\d ended with -9 in this test", said)
    assert re.search(r"FAILED \S*test_bad.py::test_dies", said)
    assert "slowest 5 durations" in said


def test_after_the_first_failure_nothing_more_is_begun(session):
    """With `-x`: a fork ends the test that it runs, and leaves the rest of its module."""
    slow = "import time, pytest\n@pytest.mark.parametrize('n', range(300))\ndef test_slow(n):\n    time.sleep(0.1)\n"
    code, said = session("-x", "-n", "2", bad=BAD, slow=slow)

    assert code == 1
    assert "stopping after 1 failures" in said
    assert "1 failed" in said
    assert int(re.search(r"(\d+) passed", said)[1]) < 50


def test_modules_that_took_longest_come_first(session, tmp_path):
    """By what the last session has noted; one of which nothing is known comes before all."""
    order = "import pytest, time\ndef test_it():\n    print('{name}', file=open('{log}', 'a'))\n    time.sleep({s})\n"
    log = tmp_path / "order"
    files = {name: order.format(name=name, log=log, s=s) for name, s in (("a", 0.0), ("b", 0.5), ("c", 0.2))}
    session("-n", "1", **files)
    session("-n", "1", new=order.format(name="new", log=log, s=0))

    assert log.read_text().split() == ["a", "b", "c", "new", "b", "c", "a"]
