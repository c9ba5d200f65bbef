"""The memory for captures, and its treatment in a loader's worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tolariad.trainer.checkpoints.buffers import HostBuffer

SIZE = 4 * 1024 * 1024


def filled():
    """Return a buffer as a capture leaves it, and its address."""
    buffer = HostBuffer()
    buffer.reserve_ahead(SIZE)
    buffer.wait()
    memory = buffer.take(SIZE)
    memory.fill_(7)
    return buffer, memory


def maps(first: int) -> bool:
    """Return whether this process has memory mapped at the address."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return any(begin <= first < end for begin, end in ranges)


def in_a_fork(look) -> int:
    """The exit code of a fork of this process that does nothing but `look`; negative: the signal it died of."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = look()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_that_lets_go_of_its_buffer_unmaps_nothing_of_its_own():
    """If the range were not mapped in a fork, another mapping could take it and be unmapped with the buffer."""
    buffer, memory = filled()
    first = memory.data_ptr()
    assert in_a_fork(lambda: 0 if maps(first) else 1) == 0

    def let_go() -> int:
        nonlocal buffer, memory
        del buffer, memory
        return 1 if maps(first) else 0

    assert in_a_fork(let_go) == 0
    assert maps(first)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_finds_its_buffer_empty():
    """A worker does not copy it, and later writes to its pages are not copied because of a worker."""
    _, memory = filled()
    seen = memory.numpy()  # torch's own threads are not there in a fork
    assert in_a_fork(lambda: int(seen.max())) == 0
    assert int(seen.min()) == 7
