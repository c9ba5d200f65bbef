"""A forked child of a process that records a run lets go of the run's files, also of one that is just being written."""

from __future__ import annotations

import os
from pathlib import Path

from tolariad.daemon.children import kept_from_children


def held_by_a_child(folder: Path) -> list[str]:
    """Fork, and return the names of the files below `folder` that the child has open."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        links = []
        for entry in tuple(Path("/proc/self/fd").iterdir()):
            try:
                links.append(entry.readlink())
            except OSError:
                continue
        os.write(writing, "\n".join(sorted(one.name for one in links if one.is_relative_to(folder))).encode())
        os._exit(0)
    os.close(writing)
    # Not `wait`: it may take the end of another test's process.
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode().split()


def test_a_child_holds_no_file_of_the_run_and_every_other(tmp_path):
    """Journal, checkpoints, and what was given by its descriptor. After the block a child has them again."""
    run = tmp_path / "run"
    for name in ("journal", "checkpoints/c000001", "mine"):
        (run / name).mkdir(parents=True)
    paths = [run / "journal/0.wal", run / "checkpoints/c000001/model.safetensors", run / "mine/data", run / "page"]
    for path in paths[2:]:
        path.touch()
    mine, page = (os.open(path, os.O_RDONLY) for path in paths[2:])
    with kept_from_children(run, page):
        # A thread writes on while the training forks: these two are opened after the block has begun.
        written = [os.open(path, os.O_CREAT | os.O_WRONLY) for path in paths[:2]]
        written += [os.open(path, os.O_RDONLY) for path in (run, run / "checkpoints")]
        assert held_by_a_child(run) == ["data"]
    assert held_by_a_child(run) == ["0.wal", "checkpoints", "data", "model.safetensors", "page", "run"]
    for one in (mine, page, *written):
        os.close(one)
