"""`tolaria reload`: let a live run read its configuration again."""

from __future__ import annotations

import click
import msgspec

from tolariad.cli import naming, output, runs
from tolariad.cli.errors import Exit
from tolariad.control.client import read_reply
from tolariad.control.replies import Reloaded
from tolariad.forensics.words import safe


@click.command()
@naming.argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_target
def reload(target: runs.Target, *, as_json: bool) -> int:
    """Let a live run read its configuration file again, and show the keys that have changed.

    Keys marked *reload* in docs/configuration.md may change. Any other difference is refused, and changes nothing.
    SIGHUP and `systemctl reload` do the same, and leave the answer in the log.
    """
    with target.connect(timeout_s=60.0) as client:
        told = read_reply(client.call("Reload", {}), Reloaded)
    if as_json:
        output.put_json(msgspec.to_builtins(told))
    else:
        output.put(f"reloaded: {', '.join(map(safe, told.changed)) or 'nothing has changed'}")
    return Exit.DONE
