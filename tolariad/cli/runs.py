"""Find the run that a command names: by folder, name or socket, by `$TOLARIA_RUN`, else the only live run.

Promises: never guesses. If several runs are live, the error lists them; if none is, the error says so.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from tolariad.cli import output
from tolariad.cli.errors import CommandError, Exit
from tolariad.control.where import SOCKET_NAME, SYSTEM_RUNS, SYSTEM_STATE, runtime_folder, socket_of, why_not_private

RUNS: Final = Path("runs")
JOURNAL: Final = "journal"
# How long a candidate may take to answer, if none was named: a recorder answers within milliseconds.
_ALIVE_S: Final = 5.0
# The parameters that name a run: three options, and the argument RUN of some commands.
NAMES: Final = ("name", "folder", "socket", "run")
if TYPE_CHECKING:
    import msgspec

    from tolariad.control.client import Client
    from tolariad.core.state.run_state import RunState

F = TypeVar("F", bound=Callable[..., Any])


class Target(NamedTuple):
    """A run as a command addresses it. `folder` is None if only a socket was given."""

    folder: Path | None
    socket: Path

    @property
    def journal(self) -> Path | None:
        """The run's journal folder, if it is known and exists."""
        return self.folder / JOURNAL if self.folder is not None and (self.folder / JOURNAL).is_dir() else None

    def connect(self, *, timeout_s: float = 10.0) -> Client:
        """Connect to the run's daemon. Raises NotReachable, and NotTrusted if another may answer; BadReply."""
        from tolariad.control.client import Client

        return Client(self.socket, folder=self.folder, timeout_s=timeout_s)

    def view(self, method: str) -> msgspec.Struct:
        """Return the daemon's answer to a method that shows the run. Raises as `connect`, and ControlError."""
        from tolariad.control.client import read_reply
        from tolariad.control.reply_tables import VIEWS

        name, kind = VIEWS[method]
        with self.connect() as client:
            return read_reply(client.call(method).get(name) or {}, kind)

    def ask(self, method: str, fold: Callable[[Path], msgspec.Struct]) -> dict[str, Any]:
        """Return the daemon's answer as a mapping or, without a daemon, what `fold` makes of the journal.

        Raises NotReachable if there is neither a daemon nor a journal, BadReply if the answer is of another type.
        """
        import msgspec

        from tolariad.control.client import NotReachable
        from tolariad.control.trust import NotTrusted

        try:
            found = self.view(method)
        except NotReachable as error:
            if self.journal is None:
                raise
            if isinstance(error, NotTrusted):
                output.note(f"{error}. The journal is read instead")
            found = fold(self.journal)
        answer: dict[str, Any] = msgspec.to_builtins(found)
        return answer


def options(function: F) -> F:
    """Add the three options that name a run."""
    a_path = click.Path(path_type=Path)
    function = click.option("--socket", "socket", type=a_path, help="The run's control socket.")(function)
    function = click.option("--dir", "folder", type=a_path, help="The run's folder.")(function)
    return click.option("-r", "--run", "name", help="The run's name.")(function)


def takes_target(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options that name a run. The command gets the run that they, or its argument RUN, name."""

    @options
    @functools.wraps(function)
    def command(**given: Any) -> int:
        place = {name: given.pop(name) for name in NAMES if name in given}
        return function(find(**place), **given)

    return command


def find(
    name: str | None = None, folder: Path | None = None, socket: Path | None = None, run: str | None = None
) -> Target:
    """Return the run that the options, or the argument RUN, name. A command's options come before those of `tolaria`.

    Raises CommandError if there is no such run.
    """
    context = click.get_current_context()
    name = name or run
    outer = context.parent
    # The nearest command around this one that was given a run: `tolaria seeds --dir D list`, `tolaria --dir D seeds`.
    while name is None and folder is None and socket is None and outer is not None:
        name, folder, socket = (outer.params.get(one) for one in ("name", "folder", "socket"))
        outer = outer.parent
    if sum(one is not None for one in (name, folder, socket)) > 1:
        raise click.UsageError("-r, --dir and --socket each name a run: give only one of them", context)
    if socket is not None:
        return Target(None, socket)
    if folder is not None:
        return Target(folder, socket_of(folder))
    if name is None:
        name = os.environ.get("TOLARIA_RUN") or None
    return by_name(name) if name is not None else _only_live()


def by_name(name: str) -> Target:
    """Return the run with this folder or name. Raises CommandError if there is none."""
    as_path = Path(name)
    if "/" in name or (as_path / JOURNAL).is_dir():
        return Target(as_path, socket_of(as_path))
    for candidate in (runtime_folder() / name, SYSTEM_RUNS / name, RUNS / name, SYSTEM_STATE / name):
        if _is_folder(candidate):
            if candidate.parent == runtime_folder() and (why := why_not_private(candidate.parent)):
                raise CommandError(Exit.NOT_REACHABLE, why, name="NotTrusted")
            return _target(candidate)
    places = ", ".join(str(place) for place in (runtime_folder(), SYSTEM_RUNS, RUNS))
    hint = "`tolaria list` shows the known runs; --dir names a folder anywhere else"
    raise CommandError(Exit.NOT_REACHABLE, f"there is no run {name!r} in {places}", hint=hint, name="NoRun")


def _is_folder(path: Path) -> bool:
    """Return whether this is a folder; False also if it cannot be examined."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _target(candidate: Path) -> Target:
    if candidate.parent == SYSTEM_RUNS:
        state = SYSTEM_STATE / candidate.name
        return Target(state if _is_folder(state) else None, candidate / SOCKET_NAME)
    folder = candidate.resolve() if candidate.is_symlink() else candidate
    return Target(folder, socket_of(folder))


def candidates() -> Iterator[Target]:
    """Yield every run in the known places, each once. A place that is somebody else's is one that cannot be reached."""
    seen: set[Path] = set()
    for place in (runtime_folder(), SYSTEM_RUNS, RUNS):
        try:
            found = sorted(filter(_is_folder, place.iterdir()))
            if place == runtime_folder() and why_not_private(place):
                found = [place]
        except OSError:
            continue
        for entry in found:
            target = Target(None, place / SOCKET_NAME) if entry == place else _target(entry)
            # Not `resolve`: it raises for a link to itself.
            key = Path(os.path.realpath(target.folder or target.socket))
            if key not in seen:
                seen.add(key)
                yield target


def is_live(target: Target) -> bool:
    """Return whether a daemon answers for this run at its socket."""
    from tolariad.control.client import BadReply, ControlError, NotReachable

    try:
        with target.connect(timeout_s=_ALIVE_S):
            return True
    except ControlError:
        return True  # it has no room for one more client
    except (NotReachable, BadReply):
        return False


def _only_live() -> Target:
    live = [target for target in candidates() if is_live(target)]
    if len(live) == 1:
        return live[0]
    if not live:
        hint = "start one with `tolariad run`, or name a run with -r NAME or --dir RUN"
        raise CommandError(Exit.NOT_REACHABLE, "no live run found", hint=hint, name="NoRun")
    names = ", ".join(str(target.folder or target.socket) for target in live)
    raise CommandError(
        Exit.USAGE, f"{len(live)} runs are live: {names}", hint="name one with -r or --dir", name="Usage"
    )


def journal_folder(run: str | Path | None) -> Path:
    """Return the journal folder of a run, named by its folder, its name or the journal folder itself.

    None: the run that the options of `tolaria` or $TOLARIA_RUN name, else the only live run. Raises CommandError if
    there is no journal.
    """
    folder = Path(run) if run is not None else known_folder(find())
    if run is not None and not folder.is_dir() and "/" not in str(run):
        folder = by_name(str(run)).folder or folder
    if (folder / JOURNAL).is_dir():
        return folder / JOURNAL
    if folder.is_dir() and next(folder.glob("*.wal*"), None) is not None:
        return folder
    hint = "give a run's folder; `tolaria list` shows the known runs"
    raise CommandError(Exit.USAGE, f"there is no journal in {folder}", hint=hint, name="NoRun")


def known_folder(target: Target) -> Path:
    """Return the run's folder. If only a socket was given, the daemon is asked."""
    if target.folder is not None:
        return target.folder
    return Path(target.ask("Status", folded)["dir"])


def folded(journal: Path) -> RunState:
    """Return the state at the end of a journal. Raises JournalError, ReplayError."""
    from journal.reader import Reader
    from tolariad.forensics.moment import state_at

    with Reader(journal) as reader:
        return state_at(reader).state
