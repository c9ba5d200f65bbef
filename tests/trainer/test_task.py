"""Finding the task that a configuration names, and the errors if it is not a task."""

from __future__ import annotations

import multiprocessing
import operator
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
from blake3 import blake3

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.tasks.digits import read_digits
from tolariad.trainer.tasks.task import Task, find_task

WORKING = """
class Mine:
    def model(self, cfg): ...
    def train_data(self, cfg): ...
    def val_data(self, cfg): ...
    def loss(self, model, batch): ...
    def evaluate(self, model, batch): ...
made = Mine()
class Half:
    def model(self, cfg): ...
class Unvalidated(Half):
    def train_data(self, cfg): ...
    def loss(self, model, batch): ...
class Lopsided(Unvalidated):
    def val_data(self, cfg): ...
class Elsewhere(Unvalidated):
    def val_loader(self): ...
    def validation_step(self, model, batch): ...
"""


SPAWNED = """
import multiprocessing
class Squares:
    def __getitem__(self, index): return index * index
if multiprocessing.parent_process() is None:
    class Mine:
        def model(self, cfg): ...
        def train_data(self, cfg): return Squares()
        def loss(self, model, batch): ...
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(WORKING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["./mine.py:Mine", "mine.py:made"])
def test_a_task_in_a_file_is_found_and_its_source_hashed(folder, name):
    """The hash goes into the execution context: a changed file is another context."""
    found = find_task(name)
    assert isinstance(found.task, Task)
    assert found.source_hash == blake3(WORKING.encode()).hexdigest()


def test_a_task_without_validation_needs_neither_of_its_methods(folder):
    """It is found; a task with only one of them is refused, and so is one that has them under other names."""
    assert type(find_task("./mine.py:Unvalidated").task).__name__ == "Unvalidated"


def test_built_in_tasks_are_found_by_name():
    """`digits` needs no path."""
    assert type(find_task("digits").task).__name__ == "Digits"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("digit", "is not one of digits, chars"),
        ("./other.py:Mine", r"there is no file .*other\.py"),
        ("./mine.py:Other", r"^mine\.py has no 'Other'$"),
        ("./mine.py:Mien", r"^mine\.py has no 'Mien'; did you mean Mine\?$"),
        ("./mine.py:Half", "has no method train_data, loss;"),
        ("./mine.py:Lopsided", "has no method evaluate;"),
        ("./mine.py:Elsewhere", "has no method val_data, evaluate; rename val_loader to val_data, rename validation_"),
        ("no.such.package:Mine", "cannot be imported"),
    ],
)
def test_what_is_wrong_is_named(folder, name, why):
    """The message says what was searched, and where."""
    with pytest.raises(SetupRefused, match=why):
        find_task(name)


def test_digits_without_its_package_says_what_to_install(monkeypatch):
    """The data is inside scikit-learn, which is an optional dependency."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupRefused, match=r"pip install 'tolariad\[examples\]'"):
        find_task("digits")


def test_digits_are_read_without_importing_their_package(monkeypatch):
    """Importing it would take more than a second at each start; all images of all ten classes are there."""
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    images, labels = read_digits()

    assert [name for name in sys.modules if name.split(".")[0] == "sklearn"] == []
    assert (images.shape, labels.shape) == ((1797, 64), (1797,))
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_objects_of_a_task_file_reach_a_process_that_is_spawned(tmp_path, how, monkeypatch):
    """It imports the module by its name, which no file has. Nothing but Python's own cache is left on the disk."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "spawned.py"
    path.write_text(SPAWNED)
    data = find_task(f"{path}:Mine").task.train_data(None)
    with ProcessPoolExecutor(1, multiprocessing.get_context(how)) as pool:
        assert pool.submit(operator.getitem, data, 7).result() == 49
    assert list(tmp_path.iterdir()) == [path]
