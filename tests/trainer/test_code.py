"""The files of a user's program, by which an edit is known."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tolariad.trainer.process import code
from tolariad.trainer.process.code import LoadedCode, code_of
from tolariad.trainer.process.own_frames import is_own_file


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Give modules files: a task's, one of a package, and its own. Return the task and the folder."""
    # The tests themselves are a program, whose modules do not matter here, nor those that other tests have loaded.
    kept = {
        name: one for name, one in sys.modules.items() if not is_own_file(getattr(one, "__file__", None) or "<no file>")
    }
    monkeypatch.setattr(sys, "modules", kept)
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
    task = type("Task", (), {"__module__": "tolaria_task_mine"})()
    task.add = add
    return task, tmp_path


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
    """A tool that calls the library: what else is loaded then is not the user's program."""
    assert code_of(None) == ()


def test_a_file_that_is_gone_is_left_out(program):
    """It was imported, and cannot be read any more."""
    task, folder = program
    (folder / "losses" / "focal.py").unlink()

    assert names_of(code_of(task)) == ["losses/__init__.py", "mine.py"]


def test_a_module_that_is_imported_later_is_found_as_it_was_then(program):
    """Once the number of modules has changed. Edits of loaded files have no effect on what the program does."""
    task, folder = program
    loaded = LoadedCode()
    assert names_of(loaded.at_start(task)) == ["losses/__init__.py", "losses/focal.py", "mine.py"]
    assert loaded.late(task) == ()

    task.add("augment", "augment.py")
    first = loaded.late(task)
    assert names_of(first) == ["augment.py"]
    (folder / "augment.py").write_text("# edited while the program runs\n")
    task.add("more", "more.py")
    assert loaded.late(task)[0] == first[0]
    assert names_of(loaded.late(task)) == ["augment.py", "more.py"]


NOTEBOOK = """
class Task:
    rate = 0.5

    def loss(self, model, batch):
        return model(batch).mean() * 2

    @staticmethod
    def kind(name):
        return name in {"one", "two", "three"}


def helper(x):
    return x + 1
"""


def run_cells(monkeypatch, source, cell="cell_1"):
    """What is known of a notebook whose cells define this."""
    notebook = ModuleType("__main__")
    exec(compile(source, cell, "exec"), notebook.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    task = notebook.Task()
    task.loop_codes = (compile(f"for x in range({len(source)}): pass", cell, "exec"),)
    return {one.name: one.hash for one in code_of(task)}


def test_functions_and_classes_of_a_notebook_are_known_by_what_they_do(program, monkeypatch):
    """Not by the number of their cell, or their lines. The files that it imports are known, too."""
    before = run_cells(monkeypatch, NOTEBOOK)
    assert {"Task (notebook)", "helper (notebook)", "losses/focal.py"} <= before.keys()
    assert run_cells(monkeypatch, NOTEBOOK, "cell_7") == before

    edited = run_cells(monkeypatch, NOTEBOOK.replace("* 2", "* 3"))
    assert [name for name, hashed in edited.items() if before[name] != hashed] == ["Task (notebook)"]
    moved = run_cells(monkeypatch, NOTEBOOK.replace("x + 1", "x + 1\n\n\n"))
    assert [name for name, hashed in moved.items() if before[name] != hashed] == ["the cell with the loop (notebook)"]
