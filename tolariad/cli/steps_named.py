"""Steps as they are named on the command line: N, or N@B for step N of branch B."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import click

_STEP: Final = re.compile(r"(?:step:)?(\d{1,18})(?:@(\d{1,18}))?")


class NamedStep(NamedTuple):
    """A step. `branch` None: of the run as it stands."""

    number: int
    branch: int | None


def read_step(_: click.Context, parameter: click.Parameter, text: str | None) -> NamedStep | None:
    """Read an option that names a step. Raises UsageError."""
    if text is None:
        return None
    found = _STEP.fullmatch(text.strip())
    if found is None or int(found[1]) < 1:
        raise click.UsageError(
            f"--{parameter.name} {text!r} is no step: give a number such as 100, or 100@1 of branch 1"
        )
    return NamedStep(int(found[1]), int(found[2]) if found[2] is not None else None)
