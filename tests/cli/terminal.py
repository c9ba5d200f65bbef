"""Run a command at a new terminal and answer its question: `python terminal.py ANSWER COMMAND…` prints its output."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys


def main() -> int:
    """Return the command's exit code."""
    answer, *command = sys.argv[1:]
    pid, terminal = pty.fork()
    if pid == 0:
        # A shell that runs tests in the background ignores ^C for all of them.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execv(command[0], command)
    said = b""
    while True:
        # A key that is pressed before anybody reads may be lost: it is pressed again.
        if b"[y/N]" in said and not select.select([terminal], [], [], 0.5)[0]:
            os.write(terminal, answer.encode())
            continue
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        said += piece
    print(said.decode())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
