"""A daemon that records which files its event loop opens, from READY to the run's end, in `RUN/opened`."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from tests.daemon.start_daemon import main
from tolariad.daemon.live import Host

# Of the kernel's own file systems: nothing waits for a disk there.
_IN_MEMORY = ("/proc", "/sys", "/dev")
serves = False
opened: list[str] = []
in_threads: set[str] = set()


def note(event: str, arguments: tuple) -> None:
    """Record the names of opened files, except modules that Python loads."""
    if event != "open" or not serves:
        return
    name = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else ""
    if not name or name.endswith((".py", ".pyc", ".so")) or name.startswith(_IN_MEMORY):
        return
    if threading.current_thread() is threading.main_thread():
        opened.append(name)
    elif threading.current_thread().name == "tolaria-file":
        in_threads.add(Path(name).name)


def audited() -> int:
    """Run the daemon with the hook."""
    say_ready, leave = Host._say_ready, Host._leave

    def begin(daemon: Host) -> None:
        global serves
        say_ready(daemon)
        serves = True

    async def end(daemon: Host) -> None:
        global serves
        serves = False
        found = {"loop": opened, "threads": sorted(in_threads)}
        (Path(json.loads(sys.argv[1])["run_dir"]) / "opened").write_text(json.dumps(found))
        await leave(daemon)

    Host._say_ready, Host._leave = begin, end
    sys.addaudithook(note)
    return main()


if __name__ == "__main__":
    sys.exit(audited())
