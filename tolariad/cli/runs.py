"""Find the run that a command names: by folder, name or socket, by `$TOLARIA_RUN`, else the only live run.

`naming` adds the options and the argument to commands.

Promises: never guesses. If several runs are live, the error lists them; if none is, the error says so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from tolariad.cli import output
from tolariad.cli.errors import CommandError, Exit
from tolariad.control.where import SOCKET_NAME, SYSTEM_RUNS, SYSTEM_STATE, runtime_folder, socket_of, why_not_private

RUNS: Final = Path("runs")
JOURNAL: Final = "journal"
# How long a candidate may take to answer, if none was named: a recorder answers within milliseconds.
_ALIVE_S: Final = 5.0
# The options that name a run, each with its parameter.
_OPTIONS: Final = {"-r": "name", "--dir": "folder", "--socket": "socket"}
if TYPE_CHECKING:
    import msgspec

    from tolariad.control.client import Client
    from tolariad.core.state.run_state import RunState


class Target(NamedTuple):
    """A run as a command addresses it. `folder` is None if only a socket was given."""

    folder: Path | None
    socket: Path

    @property
    def journal(self) -> Path | None:
        """The run's journal folder, if it is known and exists. `folder` may be the journal folder itself."""
        if self.folder is None:
            return None
        # Not `_is_folder`: a folder that may not be examined is an error of its own.
        if (self.folder / JOURNAL).is_dir():
            return self.folder / JOURNAL
        return self.folder if self.folder.is_dir() and _is_journal(self.folder) else None

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


def named_by(journal: Path) -> str:
    """Return how commands in the sentences of this journal's events name its run: by its folder, or RUN for a copy."""
    return str(journal.parent.resolve()) if journal.name == JOURNAL else "RUN"


def find(
    name: str | None = None, folder: str | None = None, socket: Path | None = None, run: str | None = None
) -> Target:
    """Return the run that the options, or the argument RUN, name; else `$TOLARIA_RUN`; else the only live run.

    A command's options come before those of `tolaria`. Raises CommandError if there is no such run.
    """
    found = chosen(name, folder, socket, run)
    return found if found is not None else the_only(live())


def chosen(
    name: str | None = None, folder: str | None = None, socket: Path | None = None, run: str | None = None
) -> Target | None:
    """Return the run that the command line, or else `$TOLARIA_RUN`, names; None if neither names one."""
    found = named(name, folder, socket, run)
    if found is None and (from_environment := os.environ.get("TOLARIA_RUN")):
        return by_name(from_environment)
    return found


def named(
    name: str | None = None, folder: str | None = None, socket: Path | None = None, run: str | None = None
) -> Target | None:
    """Return the run that the command line names; None if it names none. Raises UsageError if it names two."""
    context: click.Context | None = click.get_current_context()
    given = {"-r": name, "--dir": folder, "--socket": socket, "RUN": run}
    # The nearest command around this one that was given a run: `tolaria seeds --dir D list`, `tolaria --dir D seeds`.
    while context is not None and all(one is None for one in given.values()):
        context = context.parent
        around = context.params if context is not None else {}
        given = {option: around.get(one) for option, one in _OPTIONS.items()}
    given = {option: one for option, one in given.items() if one is not None}
    for option, one in given.items():
        # An unset variable in a script gives the empty string. It must not mean the only live run.
        if not str(one).strip():
            raise click.UsageError(f"{option} is empty: name a run, or leave it out")
    if len({str(one) for one in given.values()}) > 1:
        both = ", ".join(f"{option} {one}" for option, one in given.items())
        raise click.UsageError(f"{both}: each names a run, so give only one of them")
    for option, one in given.items():
        text = str(one)
        match option:
            case "--socket":
                return Target(None, Path(text))
            case "--dir":
                return by_folder(text)
            case _:
                return by_name(text)
    return None


def by_folder(text: str) -> Target:
    """Return the run in this folder. If there is no such folder, a run of this name."""
    path = Path(text)
    if not _is_folder(path) and "/" not in text:
        with contextlib.suppress(CommandError):
            return by_name(text)
    return Target(path, socket_of(path))


def by_name(name: str) -> Target:
    """Return the run with this folder or name. Raises CommandError if there is none."""
    as_path = Path(name)
    if "/" in name or _is_run(as_path):
        return Target(as_path, socket_of(as_path))
    for candidate in (runtime_folder() / name, SYSTEM_RUNS / name, RUNS / name, SYSTEM_STATE / name):
        if _is_folder(candidate):
            if candidate.parent == runtime_folder() and (why := why_not_private(candidate.parent)):
                raise CommandError(Exit.NOT_REACHABLE, why, name="NotTrusted")
            return _target(candidate)
    if _is_folder(as_path):
        return Target(as_path, socket_of(as_path))
    places = ", ".join(str(place) for place in (runtime_folder(), SYSTEM_RUNS, RUNS))
    hint = "`tolaria list` shows the known runs; a folder anywhere else is named by its path"
    raise CommandError(Exit.NOT_REACHABLE, f"there is no run {name!r} in {places}", hint=hint, name="NoRun")


def is_known(name: str) -> bool:
    """Return whether a folder or a run has this name."""
    try:
        return "/" in name or by_name(name) is not None
    except CommandError:
        return False


def _is_run(path: Path) -> bool:
    """Return whether this is the folder of a run, or of a journal."""
    return _is_folder(path / JOURNAL) or (_is_folder(path) and _is_journal(path))


def _is_journal(path: Path) -> bool:
    return next(path.glob("*.wal*"), None) is not None


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


def live() -> list[Target]:
    """Return the live runs in ./runs; if none is live there, those in all known places."""
    here: list[Target] = []
    elsewhere: list[Target] = []
    for target in candidates():
        (here if _is_here(target) else elsewhere).append(target)
    return [target for target in here if is_live(target)] or [target for target in elsewhere if is_live(target)]


def the_only(found: Sequence[Target]) -> Target:
    """Return the only one of the live runs. Raises CommandError if there is none, or another one."""
    if len(found) == 1:
        return found[0]
    if not found:
        hint = "start one with `tolariad run`, or name a run with -r NAME or --dir RUN"
        raise CommandError(Exit.NOT_REACHABLE, "no live run found", hint=hint, name="NoRun")
    names = ", ".join(str(target.folder or target.socket) for target in found)
    raise CommandError(
        Exit.USAGE, f"{len(found)} runs are live: {names}", hint="name one with -r or --dir", name="Usage"
    )


def _is_here(target: Target) -> bool:
    """Return whether the run is in ./runs, even if it was found by its link elsewhere."""
    folder = target.folder
    return folder is not None and os.path.realpath(folder.parent) == os.path.realpath(RUNS)


def journal_of(target: Target) -> Path:
    """Return the run's journal folder. Raises CommandError if there is none."""
    folder = known_folder(target)
    journal = target._replace(folder=folder).journal
    if journal is not None:
        return journal
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
