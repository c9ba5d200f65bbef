"""`tolaria call`: call any method of the control interface."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tolariad.cli import output, runs
from tolariad.cli.errors import Exit

_STREAMS = ("Watch", "Events")


@click.command()
@click.argument("method")
@click.argument("parameters", required=False, metavar="[JSON]")
@click.option("--more", is_flag=True, help="Ask for a stream of replies. Watch and Events always stream.")
@runs.options
@click.pass_context
def call(
    context: click.Context,
    /,
    *,
    method: str,
    parameters: str | None,
    more: bool,
    name: str | None,
    folder: Path | None,
    socket: Path | None,
) -> int:
    """Call a method of the control interface; print JSON lines.

    METHOD is a name such as Status, or a qualified name such as org.varlink.service.GetInfo. JSON is an object with the
    parameters.
    """
    try:
        given = json.loads(parameters) if parameters else {}
    except ValueError as error:
        raise click.UsageError(f"the parameters are not valid JSON: {error}", context) from error
    if not isinstance(given, dict):
        raise click.UsageError('the parameters must be a JSON object, such as {"reason": "lunch"}', context)
    qualified = method if "." in method else f"io.esper.tolaria.{method}"
    with runs.find(context, name, folder, socket).connect() as client:
        if more or method.rpartition(".")[2] in _STREAMS:
            for reply in client.stream(qualified, given):
                output.put_json(reply)
        else:
            output.put_json(client.call(qualified, given))
    return Exit.DONE
