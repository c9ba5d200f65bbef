"""Ask for confirmation before a command that can lose something.

On a terminal the user is asked. Without a terminal the command needs a flag.
"""

from __future__ import annotations

import sys

import click

from tolariad.cli.errors import CommandError, Exit


def confirm(question: str, *, nobody: str, hint: str, declined: str) -> None:
    """Ask. Raises CommandError: `nobody` with `hint` if there is no terminal, `declined` if the answer is no."""
    if not sys.stdin.isatty():
        raise CommandError(Exit.USAGE, nobody, hint=hint)
    if not click.confirm(question, err=True):
        raise CommandError(Exit.NO, declined, name="NotConfirmed")
