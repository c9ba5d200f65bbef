"""The versions of the libraries that a trainer had loaded."""

from __future__ import annotations

import sys
import sysconfig
from types import ModuleType

import msgspec
import pytest

from tolariad.core.calc.bounds import LIBRARIES_MAX
from tolariad.trainer.process.libraries import libraries


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Return a function that loads a library of a name, with or without a version of its own and of its installer."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(name, *, told=None, installed=None, place=tmp_path):
        module = ModuleType(name)
        module.__file__ = f"{place}/{name}/__init__.py"
        if told is not None:
            module.__version__ = told
        if installed is not None:
            about = tmp_path / f"{name}-{installed}.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {installed}\n")
        monkeypatch.setitem(sys.modules, name, module)
        return {one.name: one.version for one in libraries()}.get(name)

    return load


def test_a_library_is_known_by_its_own_word_or_its_installers(loaded):
    """A module of the interpreter's packages tells its version; one beside its metadata has the installer's."""
    packages = sysconfig.get_path("purelib")

    assert loaded("quietly", place=packages) is None
    assert loaded("speaking", told="3.1", place=packages) == "3.1"
    assert loaded("targeted", installed="1.0") == "1.0"


def test_the_users_own_code_is_no_library(loaded):
    """Nor a module that names another type of version, nor one whose name another package has installed elsewhere."""
    assert loaded("mine", told="9") is None
    assert loaded("odd", told=("1", "2"), place=sysconfig.get_path("purelib")) is None
    assert loaded("elsewhere", installed="2.0", place="/somewhere/else") is None


def test_what_is_loaded_here_is_listed(loaded):
    """This test's own libraries, in order; those of which the environment has fields are not repeated."""
    found = {one.name: one.version for one in libraries()}

    assert found["msgspec"] == msgspec.__version__
    assert found["pytest"] == pytest.__version__
    assert list(found) == sorted(found)
    assert not {"torch", "numpy", "tolariad", "sys", "json"} & found.keys()


def test_what_a_process_loads_is_bounded(loaded):
    """Number and length."""
    packages = sysconfig.get_path("purelib")
    for number in range(LIBRARIES_MAX + 9):
        loaded(f"a{number:04}", told="9" * 500, place=packages)
        if number == 3:
            assert max(len(one.version) for one in libraries()) == 128

    assert len(libraries()) == LIBRARIES_MAX
