"""Name a run on the command line: one form in every command. `runs` finds the run.

`-r RUN`, `--run RUN`, `--dir RUN` and `--socket PATH` stand before or after the command. RUN is a folder or a name. If
a command has no other argument, RUN may be given as one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tolariad.cli import runs
from tolariad.cli.completing import run_names
from tolariad.core.calc.text.nearest import KEYS_ALIKE, did_you_mean, nearest

F = TypeVar("F", bound=Callable[..., Any])
# The parameters that name a run: three options, and the argument RUN.
_NAMES: Final = ("name", "folder", "socket", "run")
_TEXT: Final = click.Path(path_type=str)


def by_name_or_folder(function: F) -> F:
    """Add `-r`, `--run` and `--dir`."""
    return _by_run(function, "-r")


def options(function: F) -> F:
    """Add the options that name a run."""
    return _by_run(_by_socket(function), "-r")


def options_without_r(function: F) -> F:
    """Add them to a command in which -r means something else."""
    return _by_run(_by_socket(function))


def _by_run(function: F, *short: str) -> F:
    given: dict[str, Any] = {"metavar": "RUN", "type": _TEXT, "shell_complete": run_names}
    function = click.option("--dir", "folder", help="The same.", **given)(function)
    return click.option(*short, "--run", "name", help="The run: its name or its folder.", **given)(function)


def _by_socket(function: F) -> F:
    socket = click.option("--socket", type=click.Path(path_type=Path), help="The run's control socket.")
    return socket(function)


def argument(function: F) -> F:
    """Add the argument RUN."""
    return click.argument("run", required=False, shell_complete=run_names)(function)


def taken(given: dict[str, Any]) -> dict[str, Any]:
    """Take out of a command's parameters those that name the run, for `runs.find`."""
    return {name: given.pop(name) for name in _NAMES if name in given}


def takes_target(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options that name a run. The command gets the run that they, or its argument RUN, name."""

    @options
    @functools.wraps(function)
    def command(**given: Any) -> int:
        return function(runs.find(**taken(given)), **given)

    return command


def _gives_journal(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def command(**given: Any) -> int:
        return function(runs.journal_of(runs.find(**taken(given))), **given)

    return command


def takes_journal(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options that name a run. The command gets its journal's folder; no daemon is needed."""
    return options(_gives_journal(function))


def takes_journal_without_r(function: Callable[..., int]) -> Callable[..., int]:
    """Do the same for a command in which -r means something else."""
    return options_without_r(_gives_journal(function))


class RunGroup(click.Group):
    """Commands about one run. Without a command, or with RUN in its place, the command `usual` is meant.

    The options that name the run may also stand before the command.
    """

    def __init__(self, *args: Any, usual: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._usual = usual
        options(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the usual command before arguments that have none. Raises UsageError for an unknown command."""
        command = self.commands.get(self._usual)
        first = _first_argument(command, ctx, args) if command is not None else None
        if command is None or (first is None and set(args) & set(ctx.help_option_names)):
            return super().parse_args(ctx, args)
        if first is None or (first not in self.commands and runs.is_known(first)):
            args = [self._usual, *args]
        elif first not in self.commands:
            hint = did_you_mean(nearest(first, self.list_commands(ctx), KEYS_ALIKE))
            raise click.UsageError(f"There is no command and no run {first!r}{hint or '.'}", ctx)
        return super().parse_args(ctx, args)


def _first_argument(command: click.Command, ctx: click.Context, args: Sequence[str]) -> str | None:
    """Return the first of `args` that is no option of `command`, and no value of one."""
    options = click.Command(None, params=[one for one in command.params if isinstance(one, click.Option)])
    parser = options.make_parser(ctx)
    parser.allow_interspersed_args = False
    parser.ignore_unknown_options = True
    try:
        _, rest, _ = parser.parse_args(list(args))
    except click.UsageError:
        return None  # an option without its value: the command says so
    return rest[0] if rest else None
