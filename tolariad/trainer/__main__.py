"""`python -m tolariad.trainer`: a trainer process of a daemon.

With --trial it tries something on a copy of the model; with --analyse it analyses a checkpoint for pruning.

The order of the first steps matters. Importing torch takes seconds, so before that the process must be set to die with
its daemon, and must hold the run's lock. Exit codes: 0 told to exit, 1 an exception (reported), 75 the lock is held, 78
refused.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tolariad import lifelines, run_files, signals
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_TRY_AGAIN
from tolariad.core.calc.text.tracebacks import shortened
from tolariad.trainer.process.lifelines import dump_stacks_on_request, lock_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tolariad.channel import Page, TrainerEnd
    from tolariad.trainer.loop import Trainer
    from tolariad.trainer.process.lifecycle import Ending
    from tolariad.trainer.process.waiting import Turn
    from tolariad.trainer.setup import Place, Setup

EXIT_EXCEPTION: Final = 1
_CONFIG_BYTES_MAX: Final = 1 << 24  # the resolved configuration contains every default


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tolariad.trainer", description=__doc__)
    parser.add_argument("--trial", action="store_true", help="answer a request on stdin (trials/words.py)")
    parser.add_argument("--analyse", action="store_true", help="answer one request of the daemon (pruning/worker.py)")
    parser.add_argument("--socket-fd", type=int, help="descriptor of the connection of an analysis")
    parser.add_argument("--cores", default="", help="cores for an analysis, such as 0,2; default: all")
    parser.add_argument("--priority", choices=("idle", "normal"), default="idle", help="of an analysis")
    parser.add_argument("--config-json", type=Path, help="the resolved configuration")
    parser.add_argument("--run", type=Path, help="the run's folder")
    parser.add_argument("--run-id", default="", help="the run's id, for the manifests of checkpoints")
    parser.add_argument("--incarnation", type=int, default=0)
    parser.add_argument("--channel-fd", type=int)
    parser.add_argument("--page-fd", type=int)
    parser.add_argument("--ring-fd", type=int, help="descriptor of the memory for snapshots")
    parser.add_argument("--parent-pid", type=int)
    parser.add_argument("--spare", choices=("imported", "built"), help="what a spare does before it waits")
    parser.add_argument("--spare-fd", type=int, help="socket on which a spare waits until it is to train")
    parser.add_argument("--rank", type=int, default=0, help="number of this process among --ranks")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train together")
    parser.add_argument("--group", default="", help="name of this start of the ranks")
    parser.add_argument("--printed", default="", help="mark of the traceback that an earlier trainer printed")
    parser.add_argument(
        "--torch-threads", type=int, help="threads of an earlier start of this run; the configuration takes precedence"
    )
    arguments = parser.parse_args(argv)
    own = ("socket_fd",) if arguments.analyse else () if arguments.rank else ("channel_fd", "page_fd")
    needed = ("config_json", "run", "parent_pid", *own)
    if not arguments.trial and any(getattr(arguments, name) is None for name in needed):
        parser.error("only tolariad starts a trainer; by hand use `tolariad check`")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run as the arguments say, and return the exit code."""
    arguments = _arguments(argv)
    try:
        if arguments.trial:
            if sys.platform == "linux":
                lifelines.die_with_parent(os.getppid())
            from tolariad.trainer.probes.answering import answer

            return answer()
        return _analyse(arguments) if arguments.analyse else _serve(arguments)
    except lifelines.ProcessError as error:
        print(f"tolariad.trainer: {error}", file=sys.stderr)  # noqa: T201 - the daemon logs the output
        return EXIT_TRY_AGAIN


def _analyse(arguments: argparse.Namespace) -> int:
    """Answer one request about a checkpoint. Give way to everything else before torch is imported."""
    started = time.perf_counter()
    lifelines.become_helper(arguments.parent_pid, arguments.socket_fd)

    from tolariad.leyline import pruning
    from tolariad.trainer.pruning import worker

    worker.stand_back([int(core) for core in arguments.cores.split(",") if core], idle=arguments.priority == "idle")
    with socket.socket(fileno=arguments.socket_fd) as connection, connection.makefile("rb") as stream:
        head = stream.read(pruning.LENGTH_BYTES)
        if len(head) < pruning.LENGTH_BYTES:
            # The daemon closed the connection without a request.
            return 0
        request, request_id = pruning.read_request(stream.read(pruning.length_of(head)))
        found = worker.answer(arguments.run, arguments.config_json, request, started)
        response_id = str(uuid.uuid4())
        if isinstance(found, str):
            data = pruning.write_failure(found, request_id, response_id)
        else:
            data = pruning.write_answer(request, found, request_id, response_id)
        connection.sendall(pruning.framed(data))
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    """Become a trainer: first the lifelines, then import torch, then train."""
    lifelines.die_with_parent(arguments.parent_pid)
    lifelines.be_ordinary()
    signals.leave_to_the_daemon()
    lifelines.offer_as_victim(lifelines.TRAINER_SCORE)
    passed = (arguments.channel_fd, arguments.page_fd, arguments.ring_fd)
    # Before any code of the task runs: it may fork.
    lifelines.guard_children(tuple(one for one in passed if one is not None))
    printed, setup = arguments.printed, None
    if arguments.spare is not None:
        turn = _as_spare(arguments)
        if turn is None:
            return 0
        printed, setup = turn
    if arguments.ranks > 1:
        return _serve_rank(arguments, printed, setup)
    dump_stacks_on_request(arguments.run)
    from tolariad.channel import TrainerEnd

    return _train(arguments, TrainerEnd(*_connected(arguments)), printed, setup)


def _serve_rank(arguments: argparse.Namespace, printed: str, setup: Setup | None) -> int:
    """Be one of several processes that train together."""
    dump_stacks_on_request(arguments.run, f"-{arguments.rank}" if arguments.rank else "")
    from tolariad.trainer.torch_private import light_start

    light_start.install()
    from tolariad.library import grouped
    from tolariad.trainer.setup import Place

    rank = grouped.Rank(
        place=Place(arguments.rank, arguments.ranks),
        group=arguments.group,
        run_dir=arguments.run,
        run_id=arguments.run_id,
        config=partial(_config, arguments),
        threads=arguments.torch_threads,
        setup=setup,
    )
    return _ended(grouped.serve(rank, partial(_connected, arguments)), printed)


def _connected(arguments: argparse.Namespace) -> tuple[socket.socket, Page]:
    """Lock the run, and return the socket and the page of the channel to the daemon."""
    from tolariad.channel import Activity, Page

    page = Page.attach(arguments.page_fd)

    def beat() -> None:
        page.beat(0, time.monotonic_ns(), Activity.IMPORT)

    beat()
    lock = lock_run(arguments.run, beat)
    lifelines.guard_children((lock,))
    beat()
    return socket.socket(fileno=arguments.channel_fd), page


def _as_spare(arguments: argparse.Namespace) -> Turn | None:
    """Wait, after what `--spare` says, until this process is to train. Return None if that never comes."""
    from tolariad.trainer.process import waiting

    def imported() -> None:
        waiting.imported()
        if arguments.ranks > 1:
            import tolariad.library.grouped
            import tolariad.trainer.ranks.leaf_steps
            import tolariad.trainer.ranks.shared  # noqa: F401

    def place() -> Place:
        from tolariad.trainer.setup import Place

        return Place(arguments.rank, arguments.ranks)

    def built() -> Setup | None:
        imported()
        return waiting.built(_config(arguments), arguments.torch_threads, place)

    return waiting.wait_to_train(arguments.spare_fd, built if arguments.spare == "built" else imported)


def _config(arguments: argparse.Namespace) -> bytes:
    resolved = arguments.config_json
    return run_files.read_file(resolved.parent, resolved.name, _CONFIG_BYTES_MAX)


def _train(arguments: argparse.Namespace, end: TrainerEnd, printed: str, setup: Setup | None) -> int:
    """Build and train. Report the reason of the end before the process ends."""
    from tolariad.trainer.process.lifecycle import built, see_through

    def build() -> Trainer:
        return built(
            *(end, arguments.run, arguments.run_id),
            config=_config(arguments),
            threads=arguments.torch_threads,
            ring=arguments.ring_fd,
            setup=setup,
        )

    return _ended(see_through(build, end), printed)


def _ended(ending: Ending, printed: str) -> int:
    """Print the traceback of the end, and return the exit code."""
    from tolariad.trainer.process.lifecycle import End

    text = shortened(ending.traceback, printed)
    print(text, file=sys.stderr, end="")  # noqa: T201 - the daemon logs the output
    return {End.TOLD: 0, End.REFUSED: EXIT_CONFIG, End.RAISED: EXIT_EXCEPTION}[ending.end]


if __name__ == "__main__":
    lifelines.leave(main())
