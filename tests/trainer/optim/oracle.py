"""timm's AdamW with `caution=True`: an independent implementation of the published algorithm.

timm's package imports torchvision, which has no build for this torch; its optimizers need none of it. So `timm` and
`timm.optim` stand in `sys.modules` as empty packages over their folders while `timm.optim.adamw` is imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest


@functools.cache
def timm_adamw():
    """Return the class, or skip the test with what is missing."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed; make test installs it with --no-deps")
    folder = Path(spec.origin).parent
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "timm"}
    for name, place in (("timm", folder), ("timm.optim", folder / "optim")):
        package = types.ModuleType(name)
        package.__path__ = [str(place)]
        sys.modules[name] = package
    try:
        return importlib.import_module("timm.optim.adamw").AdamWLegacy
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
            del sys.modules[name]
        sys.modules.update(before)
