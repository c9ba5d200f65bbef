"""`tolaria call`: call any method of the control interface."""

from __future__ import annotations

import json

import click

from tolariad.cli import output, runs
from tolariad.cli.errors import Exit

_STREAMS = ("Watch", "Events")


@click.command()
@click.argument("method")
@click.argument("parameters", required=False, metavar="[JSON]")
@click.option("--more", is_flag=True, help="Ask for a stream of replies. Watch and Events always stream.")
@runs.takes_target
def call(target: runs.Target, *, method: str, parameters: str | None, more: bool) -> int:
    """Call a method of the control interface; print JSON lines.

    METHOD is a name such as Status, or a qualified name such as org.varlink.service.GetInfo. JSON is an object with the
    parameters.
    """
    try:
        given = json.loads(parameters) if parameters else {}
    except ValueError as error:
        raise click.UsageError(f"the parameters are not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise click.UsageError('the parameters must be a JSON object, such as {"reason": "lunch"}')
    qualified = method if "." in method else f"io.esper.tolaria.{method}"
    with target.connect() as client:
        if more or method.rpartition(".")[2] in _STREAMS:
            for reply in client.stream(qualified, given):
                output.put_json(reply)
        else:
            output.put_json(client.call(qualified, given))
    return Exit.DONE
