"""`python -m tolariad.strategy`: the process of a user's strategy, started by the daemon or, with --rehearse, by hand.

It is tied to the daemon before the user's code is imported. It imports torch only if the user's code does. Exit codes:
0 the daemon closed the connection, 75 it cannot be tied to the daemon, 78 the strategy cannot be used.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Sequence

import msgspec

from tolariad import lifelines
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_TRY_AGAIN
from tolariad.strategy.rehearsal import rehearse
from tolariad.strategy.serving import serve, told


def main(argv: Sequence[str] | None = None) -> int:
    """Become the strategy's process, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tolariad.strategy", description=__doc__)
    parser.add_argument("--name", required=True, help="package.module:Name or ./file.py:Name")
    parser.add_argument("--rehearse", action="store_true", help="try it with packets of a made-up run, print JSON")
    parser.add_argument("--socket-fd", type=int)
    parser.add_argument("--parent-pid", type=int)
    arguments = parser.parse_args(argv)
    if arguments.rehearse:
        return _rehearse(arguments.name)
    if arguments.socket_fd is None or arguments.parent_pid is None:
        parser.error("only tolariad starts a strategy; by hand use --rehearse")
    try:
        lifelines.become_helper(arguments.parent_pid, arguments.socket_fd)
    except lifelines.ProcessError as error:
        print(f"tolariad.strategy: {error}", file=sys.stderr)  # noqa: T201 - the daemon logs the output
        return EXIT_TRY_AGAIN
    with socket.socket(fileno=arguments.socket_fd) as connection:
        return serve(connection, arguments.name)


def _rehearse(name: str) -> int:
    try:
        found = rehearse(name)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is the answer
        print(told(error, "cannot be used"), file=sys.stderr)  # noqa: T201 - a command's answer
        return EXIT_CONFIG
    print(msgspec.json.encode(found).decode())  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    lifelines.leave(main())
