"""Questions before what can lose something: asked on a terminal, a flag anywhere else.

It must not know: what is asked.
"""

from __future__ import annotations

import sys

import click

from tolariad.cli.errors import CommandError, Exit


def confirm(question: str, *, nobody: str, hint: str, declined: str) -> None:
    """Ask. Raises CommandError: `nobody`, with `hint`, where there is no terminal; `declined` where the answer is no."""
    if not sys.stdin.isatty():
        raise CommandError(Exit.USAGE, nobody, hint=hint)
    if not click.confirm(question, err=True):
        raise CommandError(Exit.NO, declined, name="NotConfirmed")
