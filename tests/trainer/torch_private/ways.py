"""The two ways of a module of `torch_private`: with torch's private names, and without them."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tolariad.trainer.torch_private import choice

WAYS = ("private", "public")


def module(name: str, way: str) -> ModuleType:
    """Return the module as it is in a process that uses these names only. It is a copy of its own."""
    spec = importlib.util.find_spec(f"tolariad.trainer.torch_private.{name}")
    found = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(choice, "ONLY_PUBLIC", way == "public")
        spec.loader.exec_module(found)
    return found


@pytest.fixture(params=WAYS)
def way(request, monkeypatch) -> str:
    """Each of the two ways, for the whole test."""
    monkeypatch.setattr(choice, "ONLY_PUBLIC", request.param == "public")
    return request.param
