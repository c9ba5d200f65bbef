"""A strategy is found by its name; a mistake in the name is answered with the near one."""

from __future__ import annotations

import hashlib
import sys
import textwrap

import pytest

from tolariad.strategy import DefaultStrategy, StrategyRefused, find_strategy

SOURCE = textwrap.dedent(
    """
    from tolariad.strategy import DefaultStrategy, PolicyLimits

    class Mine:
        def step(self, packet):
            return []

    class Steps:
        def stepp(self, packet):
            return []

    class Bare:
        pass

    class Two:
        def step(self, packet, more):
            return []

    class Half(Mine):
        def state_dict(self):
            return {}

    class Misnamed(Mine):
        def load_state_dct(self, state):
            pass

    class Needy(Mine):
        def __init__(self, path):
            pass

    def make():
        return DefaultStrategy(PolicyLimits(patience=5))

    ready = Mine()

    class Outer:
        class Inner(Mine):
            pass
    """
)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    yield path
    for name in [name for name in sys.modules if name.startswith("tolaria_strategy_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["Mine", "ready", "make", "Outer.Inner"])
def test_classes_functions_and_objects_of_a_file_are_strategies(file, name):
    """Each is found, with the hash of its file."""
    found = find_strategy(f"{file}:{name}")

    assert callable(found.strategy.step)
    assert found.source_hash == hashlib.sha256(SOURCE.encode()).hexdigest()


def test_the_default_and_a_package_are_found_by_name():
    """The default policy belongs to no file of the user's."""
    assert isinstance(find_strategy("default").strategy, DefaultStrategy)
    assert find_strategy("default").source_hash == ""
    assert isinstance(find_strategy("tolariad.strategy.default:DefaultStrategy").strategy, DefaultStrategy)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Mien", r"did you mean Mine\?"),
        ("Outer.Iner", r"did you mean Outer.Inner\?"),
        ("Nothing", "has no 'Nothing'$"),
        ("Steps", "rename stepp to step"),
        ("Bare", r"it needs step\(packet\)"),
        ("Two", r"step is called as step\(packet\)"),
        ("Half", "has no method load_state_dict; a strategy has both or neither"),
        ("Misnamed", "load_state_dct is never called; rename it to load_state_dict"),
    ],
)
def test_a_mistake_in_the_file_is_named(file, name, why):
    """The text says what to change."""
    with pytest.raises(StrategyRefused, match=why):
        find_strategy(f"{file}:{name}")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("./nowhere.py:Mine", "there is no file .*nowhere.py"),
        ("no_such_package.here:Mine", "is it installed, or on PYTHONPATH"),
        ("none", "is not default, package.module:Name"),
        (":Mine", "is not default"),
    ],
)
def test_a_place_that_is_not_there_is_named(name, why):
    """Relative paths start at the working folder."""
    with pytest.raises(StrategyRefused, match=why):
        find_strategy(name)


def test_what_a_users_class_raises_is_not_hidden(file):
    """A class that needs arguments says so itself."""
    with pytest.raises(TypeError, match="path"):
        find_strategy(f"{file}:Needy")
