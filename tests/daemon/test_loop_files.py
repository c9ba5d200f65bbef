"""The daemon's loop never waits for a disk: a thread reads every file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tests.daemon.harness import SETS, of_type
from tolariad import loop_files, run_files
from tolariad.core import messages as m
from tolariad.daemon.disk import watch_disk


def test_the_loop_opens_no_file(start, run_dir, tmp_path):
    """Through status, an interface's text, a reload, a hung trainer and its stacks, a new trainer, and a stop."""
    file = tmp_path / "run.yaml"
    file.write_text("tolaria: {task: digits, epochs: 3}\n")
    daemon = start(
        config=str(file),
        sets=SETS,
        module="tests.daemon.start_audited",
        environ={"FAKE_TRAINER": "hang@4", "FAKE_STEP_S": "0.02"},
        hang_s=4.0,
        unknown_s=10.0,
        linger=True,
    )
    daemon.until(lambda status: status["step"] >= 3)
    file.write_text("tolaria: {task: digits, epochs: 3, logging: {level: debug}}\n")
    daemon.send(signal.SIGHUP)
    daemon.until(lambda status: status["phase"] == "completed" and of_type(run_dir, m.ConfigChanged))
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.stderr
    found = json.loads((run_dir / "opened").read_text())

    assert of_type(run_dir, m.TrainerHung)
    assert of_type(run_dir, m.ConfigChanged)
    assert found["loop"] == []
    assert {"trainer.lock", "trainer.stacks"} <= set(found["threads"]), "the hook sees no thread either"


async def test_a_runs_file_is_read_under_the_rules_of_run_files(run_dir):
    """It reads from an offset, up to a size; a link is refused, also through aiofiles."""
    run_dir.mkdir(exist_ok=True)
    (run_dir / "notes").write_bytes(b"0123456789")
    (run_dir / "link").symlink_to(run_dir / "notes")

    assert await loop_files.read_run_file(run_dir, "notes", 4, 3) == b"3456"
    with pytest.raises(run_files.UnsafeFile):
        await loop_files.read_run_file(run_dir, "link", 4)
    with pytest.raises(FileNotFoundError):
        await loop_files.read_run_file(run_dir, "other", 4)


async def test_a_disk_that_hangs_stops_neither_loop_nor_watch():
    """If the measurement of free space hangs, other coroutines run, and a cancel does not wait for it."""
    hangs, told, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    class Journal:
        def free_bytes(self) -> int:
            loop.call_soon_threadsafe(told.set)
            hangs.wait(60)
            return 0

    watching = asyncio.create_task(watch_disk(Journal(), SimpleNamespace(durable=None), None))
    await told.wait()
    begun = time.monotonic()
    watching.cancel()
    await asyncio.wait({watching})
    assert watching.cancelled()
    assert time.monotonic() - begun < 30
    hangs.set()


def test_a_hanging_read_does_not_keep_the_process(tmp_path):
    """The loop closes and the interpreter ends while a call to a file still hangs."""
    os.mkfifo(tmp_path / "fifo")
    code = (
        "import asyncio, os, sys; from tolariad import loop_files\n"
        "async def main():\n"
        "    task = asyncio.create_task(loop_files.in_thread(os.open, sys.argv[1], os.O_RDONLY))\n"
        "    await asyncio.sleep(0.1); print('leaves')\n"
        "asyncio.run(main())\n"
    )

    async def run() -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(tmp_path / "fifo"), stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            return (await process.communicate())[0]

    assert asyncio.run(run()) == b"leaves\n"
