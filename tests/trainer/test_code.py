"""The files of a user's program, by which an edit is known."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tolariad.trainer.process import code
from tolariad.trainer.process.code import code_of


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Give modules files: a task's, one of a package, and its own. Return the task and the folder."""
    # The tests themselves are a program, whose modules do not matter here.
    monkeypatch.setattr(sys, "modules", {name: one for name, one in sys.modules.items() if name.startswith("tolariad")})
    monkeypatch.setattr(code, "_known", {})

    def add(name, file):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {file}\n")
        module = ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)

    add("tolaria_task_mine", "mine.py")
    add("losses.focal", "losses/focal.py")
    add("losses", "losses/__init__.py")
    return type("Task", (), {"__module__": "tolaria_task_mine"})(), tmp_path


def names_of(found):
    return [one.name for one in found]


def test_modules_of_the_user_are_known_by_name_and_content(program):
    """Names do not depend on the folder. An edit changes one hash; no library and nothing of this package is there."""
    task, folder = program
    before = code_of(task)
    assert names_of(before) == ["losses/__init__.py", "losses/focal.py", "mine.py"]
    assert code_of(task) == before

    (folder / "losses" / "focal.py").write_text("# another one, of another length\n")
    changed = [a.name for a, b in zip(before, code_of(task), strict=True) if a != b]
    assert changed == ["losses/focal.py"]


def test_a_program_without_a_file_of_its_own_has_no_code(program):
    """A notebook, and a tool that calls the library: what else is loaded then is not the user's program."""
    assert code_of(None) == ()


def test_a_file_that_is_gone_is_left_out(program):
    """It was imported, and cannot be read any more."""
    task, folder = program
    (folder / "losses" / "focal.py").unlink()

    assert names_of(code_of(task)) == ["losses/__init__.py", "mine.py"]
