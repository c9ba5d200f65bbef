"""Finding a blueprint: built in, installed, in a package, in a file; and errors that help."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch
from blake3 import blake3

from tests.house.tree import ROOT
from tests.trainer.seeds.test_seeds_in_a_run import TASK
from tolariad.core import messages as m
from tolariad.trainer.build import build
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.seeds import Blueprint, blueprint_names, find_blueprint, registry
from tolariad.trainer.seeds.registry import source_of

FILE = """
import torch
from torch import nn

class Doubling:
    def __init__(self, rank: float = 2.0):
        self.rank = rank
    def build(self, example):
        return nn.Linear(example.shape[-1], int(self.rank))

def factory(**options):
    return Doubling(**options)

ready = Doubling(5.0)
wrong = object()

class Raising:
    def __init__(self):
        raise ValueError("no luck")
"""


@pytest.fixture
def file(tmp_path):
    """Write a module with blueprints."""
    path = tmp_path / "own.py"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["bottleneck", "conv", "low_rank"])
def test_built_in_names_are_found(name):
    """Without an installation, as in a source tree."""
    assert isinstance(find_blueprint(name), Blueprint)
    assert name in blueprint_names()


def test_the_built_in_ones_are_registered_for_other_tools():
    """The list of the group of entry points has them; both lists agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    registered = project["entry-points"]["tolariad.blueprints"]

    assert {name: EntryPoint(name, value, "").load() for name, value in registered.items()} == registry._BUILT_IN


def test_a_class_in_a_file_takes_options(file):
    """Floats, as they come in an order."""
    blueprint = find_blueprint(f"{file}:Doubling", {"rank": 3.0})

    assert blueprint.build(torch.zeros(2, 4)).weight.shape == (3, 4)


def test_a_factory_and_an_object_are_blueprints_too(file):
    """The factory takes any option; the object takes none."""
    assert find_blueprint(f"{file}:factory", {"rank": 4.0}).rank == 4.0
    assert find_blueprint(f"{file}:ready").rank == 5.0
    with pytest.raises(SetupRefused, match="is an object, which takes no options \\(rank\\)"):
        find_blueprint(f"{file}:ready", {"rank": 1.0})


def test_a_name_in_a_package_is_imported():
    """By its dotted name."""
    assert isinstance(find_blueprint("tolariad.trainer.seeds.blueprints:Conv", {"kernel": 5.0}), Blueprint)


REFUSED = {
    "near a built-in": ("botleneck", {}, "is not one of bottleneck, conv, low_rank.*did you mean bottleneck"),
    "near a class": ("{file}:Doublin", {}, "own.py has no 'Doublin'; did you mean Doubling"),
    "near an option": ("low_rank", {"rnk": 1.0}, "'low_rank' has no option 'rnk'; did you mean rank"),
    "an option far away": ("conv", {"xyz": 1.0}, "'conv' has no option 'xyz'$"),
    "no file": ("./nowhere.py:X", {}, "blueprint: there is no file .*nowhere.py"),
    "no package": ("nowhere.at.all:X", {}, "blueprint: 'nowhere.at.all:X' cannot be imported.*PYTHONPATH"),
    "no method": ("{file}:wrong", {}, "is a object without a method build"),
    "it raises": ("{file}:Raising", {}, "raised ValueError: no luck"),
    "nothing": ("", {}, "'' is not one of bottleneck"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_what_cannot_be_found_is_refused(kind, file):
    """With the nearest name, or the reason."""
    name, options, message = REFUSED[kind]

    with pytest.raises(SetupRefused, match=message):
        find_blueprint(name.format(file=file), options)


def installed(monkeypatch, *values: tuple[str, str]) -> None:
    """Let these be the entry points of the group."""
    points = EntryPoints(EntryPoint(name, value, registry.GROUP) for name, value in values)
    monkeypatch.setattr(registry, "entry_points", points.select)


def test_an_installed_package_adds_a_blueprint(monkeypatch):
    """Under its short name, which is listed and suggested."""
    installed(monkeypatch, ("wide", "tolariad.trainer.seeds.blueprints:Bottleneck"))

    assert blueprint_names() == ("bottleneck", "conv", "low_rank", "wide")
    assert find_blueprint("wide", {"reduction": 1.0}).build(torch.zeros(1, 3)) is not None
    with pytest.raises(SetupRefused, match="did you mean wide"):
        find_blueprint("wiide")


def test_two_packages_of_one_name_are_refused(monkeypatch):
    """Which one it is must not depend on an order of folders."""
    installed(monkeypatch, ("wide", "one:A"), ("wide", "two:B"))

    with pytest.raises(SetupRefused, match="several packages register 'wide': one:A, two:B"):
        find_blueprint("wide")


def test_a_built_in_name_cannot_be_taken(monkeypatch):
    """An order in a journal keeps its meaning."""
    installed(monkeypatch, ("conv", "one:A"))

    assert type(find_blueprint("conv")).__module__ == "tolariad.trainer.seeds.blueprints"


def test_the_source_of_a_blueprint_is_that_of_its_file(file):
    """It changes with the file; a built-in one has none. The blueprint is not called: it may need options."""
    before = source_of(f"{file}:Doubling")
    assert before == blake3(file.read_bytes()).hexdigest()
    file.write_text(FILE + "\nmore = 1\n", encoding="utf-8")

    assert source_of(f"{file}:factory") != before
    assert source_of("low_rank") == ""
    assert source_of("tolariad.trainer.seeds.blueprints:Conv")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{file}:Widdening", "own.py has no 'Widdening'"),
        ("{file}:wrong", "without a method build"),
        ("{folder}/none.py:A", "there is no file"),
        ("{folder}/broken.py:A", "raised SyntaxError"),
    ],
)
def test_a_run_with_a_blueprint_that_cannot_be_imported_is_refused_at_its_start(tmp_path, file, configured, name, says):
    """Not at the first germination, which may be hours later. `tolariad check` builds the run, too."""
    (tmp_path / "broken.py").write_text("def build(:\n", encoding="utf-8")
    named = name.format(file=file, folder=tmp_path)

    with pytest.raises(SetupRefused, match=says):
        build(configured(f"{TASK}:Seeded", epochs=1, batch_size=5, seeds={"blueprints": [named]}))


def test_a_run_knows_the_sources_of_its_own_blueprints(file, configured):
    """Its execution context depends on them; importing them draws from no generator of the run's."""
    file.write_text(f"{FILE}\ntorch.rand(3)\n", encoding="utf-8")
    named = [f"{file}:Doubling", "conv"]
    own = build(configured(f"{TASK}:Seeded", epochs=1, batch_size=5, seeds={"blueprints": named}))
    plain = build(configured(f"{TASK}:Seeded", epochs=1, batch_size=5))

    hashed = blake3(file.read_bytes()).hexdigest()
    assert own.garden.sources == (m.BlueprintSource(name=f"{file}:Doubling", hash=hashed),)
    assert plain.garden.sources == ()
    file.write_text(f"{FILE}\n", encoding="utf-8")
    other = build(configured(f"{TASK}:Seeded", epochs=1, batch_size=5, seeds={"blueprints": named}))
    assert other.environment.config_hash != own.environment.config_hash
    pairs = zip(own.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
