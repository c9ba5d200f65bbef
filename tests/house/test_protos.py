"""The messages' sources, their generated code, and the packages that both need agree."""

from __future__ import annotations

import re

import pytest

from tests.house.protos import FILES, generate
from tests.house.test_packaging import CONSTRAINTS, PROJECT
from tests.house.tree import GENERATED, ROOT

FOLDER = ROOT / GENERATED[0]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A folder with the code that the sources give now, by name."""
    folder = tmp_path_factory.mktemp("generated")
    generate(folder)
    return {path.name: path.read_bytes() for path in (folder / GENERATED[0]).iterdir()}


def test_the_generated_code_is_that_of_the_sources(fresh):
    """After a change of a message its code must be generated again (`make proto`)."""
    kept = {path.name: path.read_bytes() for path in FOLDER.glob("*_pb2.py*") if path.suffix in {".py", ".pyi"}}

    assert len(kept) == 2 * len(FILES) == 14
    assert [name for name in fresh.keys() | kept.keys() if fresh.get(name) != kept.get(name)] == []


def test_an_installation_has_a_protobuf_that_runs_the_code():
    """The runtime refuses code of a newer generator, so the lower bound is the generator's version."""
    made_with = re.search(r"Protobuf Python Version: (\S+)", (FOLDER / "enums_pb2.py").read_text(encoding="utf-8"))[1]
    (bound,) = (one for one in PROJECT["project"]["dependencies"] if one.startswith("protobuf"))

    assert bound == f"protobuf>={made_with}"
    assert tuple(map(int, made_with.split("."))) <= tuple(map(int, CONSTRAINTS["protobuf"].split(".")))
