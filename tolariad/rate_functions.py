"""Rate functions of the user: `file.py:function`, imported, called for every step, and packed into a table.

`function(step, total_steps)` returns the factor of base_lr for one update; `step` counts the updates before it, as in
torch's LambdaLR. Promises: a function that depends on more than its arguments, or gives a value that is no rate, is
refused with the step. Only the trainer and `tolaria lr set`, each as its own user, import the file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tolariad.core.calc.learning_rate.tabulated import PACKED_MAX, STEPS_MAX, Tabulated, factor_refusal, packed

_PIN_CHARACTERS: Final = 16


class FunctionRefused(ValueError):
    """The function cannot set learning rates; the text says why, and at which step."""


class Source(NamedTuple):
    """The parts of `file.py:function@hash`; `pin`: the beginning of the file's SHA-256, "" if it is not given."""

    path: Path
    name: str
    pin: str

    @classmethod
    def of(cls, policy: str) -> Source:
        """Return the parts of the policy."""
        place, _, rest = policy.rpartition(":")
        name, _, pin = rest.partition("@")
        return cls(Path(place), name, pin)

    def __str__(self) -> str:
        """Return `file.py:function`."""
        return f"{self.path}:{self.name}"


def pinned(policy: str) -> str:
    """Return the policy with the hash of its file as it is now. Raises FunctionRefused if it cannot be read."""
    source = Source.of(policy)
    return f"{source}@{_source_hash(source.path)[:_PIN_CHARACTERS]}"


def _source_hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise FunctionRefused(f"{path} cannot be read: {error.strerror or error}; a policy needs it") from error


def tabulate(policy: str, steps: int | None) -> Tabulated:
    """Call the function for every step of a curve of `steps` steps. Raises FunctionRefused.

    The file must have the hash in `policy`, if that has one.
    """
    source = Source.of(policy)
    if steps is None:
        raise FunctionRefused(f"the policy {source} needs the number of steps, and it is not known")
    if steps > STEPS_MAX:
        raise FunctionRefused(f"the policy {source} is for at most {STEPS_MAX} steps, and the schedule has {steps}")
    found = _source_hash(source.path)
    if not found.startswith(source.pin):
        was_is = f"its hash was {source.pin} and is {found[:_PIN_CHARACTERS]}"
        raise FunctionRefused(f"{source.path} has changed since the run read it: {was_is}; put the former file back")
    function = _imported(source)
    factors = [_value(function, source, step, steps) for step in range(steps)]
    for step, factor in enumerate(factors):
        if (again := _value(function, source, step, steps)) != factor:
            why = f"at step {step} it gives {factor!r}, and then {again!r}: it must depend on its arguments only"
            raise FunctionRefused(f"{source}: {why}")
    text = packed(factors)
    if len(text) > PACKED_MAX:
        why = f"its {steps} values take {len(text)} characters, and at most {PACKED_MAX} fit into the state of the run"
        raise FunctionRefused(f"{source}: {why}; a smooth function or one with stairs takes less")
    return Tabulated(source=str(source), hash=found, steps=steps, packed=text)


def _imported(source: Source) -> Callable[[int, int], Any]:
    path, name = source.path, source.name
    # A prefixed name cannot hide an installed module.
    spec = importlib.util.spec_from_file_location(f"tolaria_rates_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise FunctionRefused(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise FunctionRefused(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        raise FunctionRefused(f"{path} has no function {name!r}")
    return function  # type: ignore[no-any-return]  # any callable


def _value(function: Callable[[int, int], Any], source: Source, step: int, steps: int) -> float:
    try:
        # A number of any kind: of NumPy or torch, or an int.
        factor = float(function(step, steps))
    except Exception as error:
        why = f"{source}({step}, {steps}) raises {type(error).__name__}: {error}"
        raise FunctionRefused(f"{why}; it is called with the step and the number of steps") from error
    if (why_not := factor_refusal(step, factor)) is not None:
        raise FunctionRefused(f"{source}: {why_not}")
    return factor
