"""A daemon whose run has ended exits, whatever hangs, and logs what did."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tolariad.daemon import leaving


async def test_work_that_hangs_is_named_and_left(caplog):
    """Its name and its current line are in the log; the loop was free in the meantime."""
    release, turns = threading.Event(), 0

    def a_disk_that_never_answers() -> None:
        release.wait(600)

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    beside = asyncio.create_task(turn())
    ended = await leaving.finish("the journal", a_disk_that_never_answers, limit_s=0.4, say_s=0.1)
    beside.cancel()
    release.set()

    assert not ended
    assert turns > 1
    assert {record.levelname for record in caplog.records} == {"WARNING", "CRITICAL"}
    assert "the journal" in caplog.text
    assert "a_disk_that_never_answers" in caplog.text


async def test_work_that_ends_is_waited_for_and_what_it_raises_is_raised():
    """The work runs in order, and a failure does not count as its end."""
    done = []
    assert await leaving.finish("it", lambda: (time.sleep(0.05), done.append(1))[0], limit_s=60)
    assert done == [1]

    def fail() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        await leaving.finish("it", fail, limit_s=60)


def test_a_thread_that_hangs_does_not_keep_the_loop_from_closing():
    """The process does not wait for this thread, unlike those of the loop's executor."""
    release = threading.Event()

    async def main() -> bool:
        return await leaving.finish("it", lambda: release.wait(600) and None, limit_s=0.05)

    before = time.monotonic()
    assert asyncio.run(main()) is False
    assert time.monotonic() - before < 60
    release.set()


async def test_a_task_that_does_not_end_is_named(caplog):
    """A task that ignores its cancellation is logged by name and abandoned; the others have ended."""

    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                continue

    tasks = [asyncio.create_task(stubborn(), name="stubborn"), asyncio.create_task(asyncio.sleep(600), name="meek")]
    await asyncio.sleep(0)
    await leaving.cancel(tasks, limit_s=0.1)
    tasks[0].cancel()

    assert tasks[1].cancelled()
    assert "stubborn" in caplog.text
    assert "meek" not in caplog.text
