"""`python -m tolariad.strategy`: the process of a user's strategy, started by the daemon.

It is tied to the daemon before the user's code is imported. It imports torch only if the user's code does. Exit codes:
0 the daemon closed the connection, 75 it cannot be tied to the daemon, 78 there is no such strategy.
"""

from __future__ import annotations

import argparse
import faulthandler
import signal
import socket
import sys
from collections.abc import Sequence

from tolariad.core.exits import EXIT_TRY_AGAIN
from tolariad.strategy.serving import serve
from tolariad.trainer.process import lifelines


def main(argv: Sequence[str] | None = None) -> int:
    """Become the strategy's process, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tolariad.strategy", description=__doc__)
    parser.add_argument("--name", required=True, help="package.module:Name or ./file.py:Name")
    parser.add_argument("--socket-fd", required=True, type=int)
    parser.add_argument("--parent-pid", required=True, type=int)
    arguments = parser.parse_args(argv)
    try:
        lifelines.die_with_parent(arguments.parent_pid)
    except lifelines.ProcessError as error:
        print(f"tolariad.strategy: {error}", file=sys.stderr)  # noqa: T201 - the daemon logs the output
        return EXIT_TRY_AGAIN
    lifelines.be_ordinary()
    lifelines.ignore_terminal_signals()
    lifelines.offer_as_victim()
    # A process that does not answer writes its stacks to the log before it is killed.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    lifelines.guard_children((arguments.socket_fd,))
    with socket.socket(fileno=arguments.socket_fd) as connection:
        return serve(connection, arguments.name)


if __name__ == "__main__":
    lifelines.leave(main())
