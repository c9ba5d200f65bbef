"""A group of commands that are imported when they are called: `tolaria status` does not load `tolaria why`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from tolariad.cli.examples import put_examples
from tolariad.core.calc.text.nearest import KEYS_ALIKE, did_you_mean, nearest


class LazyGroup(click.Group):
    """A group whose commands are given as `{name: "module:attribute"}`. Those of module `rest` belong to it too."""

    def __init__(self, *args: object, places: Mapping[str, str], rest: str | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # click's own signature is passed through
        self._places = places
        self._rest = rest

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the given order, then those of the module `rest`."""
        del ctx
        return [*self._places, *self._others()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if none has that name."""
        del ctx
        place = self._places.get(cmd_name)
        if place is None:
            command = self._others().get(cmd_name)
            return put_examples(command, f"{self.name} {cmd_name}") if command is not None else None
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{place} is no command")
        return put_examples(command, f"{self.name} {cmd_name}")

    def _others(self) -> dict[str, click.Command]:
        if self._rest is None:
            return {}
        found = vars(importlib.import_module(self._rest)).values()
        return {one.name: one for one in found if isinstance(one, click.Command) and one.name}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. The error for an unknown one suggests the nearest name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = did_you_mean(nearest(args[0], self.list_commands(ctx), KEYS_ALIKE))
            raise click.UsageError(f"There is no command {args[0]!r}{hint or '.'}", ctx) from error
