"""An exception is shown from the task's own first frame on."""

from __future__ import annotations

import functools
import re
import runpy

import pytest

from tolariad.channel import TrainerEnd, channel_pair
from tolariad.core.calc.text.tracebacks import mark_of
from tolariad.trainer.process.lifecycle import see_through
from tolariad.trainer.process.own_frames import shown

TASK = """
import functools, torch
def inner():
    torch.zeros(2) @ torch.zeros(3)
def chained():
    try:
        inner()
    except RuntimeError as error:
        raise OSError("no data") from error
def grouped():
    try:
        chained()
    except OSError as error:
        raise ExceptionGroup("both", [error, RuntimeError("other")])
"""


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(TASK)
    return runpy.run_path(str(path)), path


@pytest.mark.parametrize("name", ["inner", "chained", "grouped"])
def test_frames_of_this_package_before_the_task_are_left_out(task, name):
    """Of the exception, of its causes, and of those of a group; those below the task stay."""
    functions, path = task
    daemon, theirs = channel_pair(1)
    end = TrainerEnd(theirs, daemon.page)
    ending = see_through(functools.partial(functions[name]), end)
    end.close()
    daemon.close()

    files = re.findall(r'File "([^"]+)"', ending.traceback)
    assert files
    assert set(files) == {str(path)}
    assert ending.traceback.count("in inner") == 1
    assert "RuntimeError" in ending.traceback


def test_a_defect_of_this_package_is_shown_whole():
    """No frame of a task leads to it, so every frame counts."""
    with pytest.raises(TypeError) as raised:
        mark_of(None)
    error = raised.value.with_traceback(raised.tb.tb_next)

    assert re.findall(r'File ".*/([^/"]+)"', shown(error))[0] == "tracebacks.py"


def test_a_file_that_cannot_be_compiled_shows_its_line(tmp_path):
    """The text has the line of the task, and no frame of the import."""
    path = tmp_path / "broken.py"
    path.write_text("x = (\n")
    with pytest.raises(SyntaxError) as raised:
        runpy.run_path(str(path))
    text = shown(raised.value)

    assert f'File "{path}", line 1' in text
    assert "SyntaxError" in text
