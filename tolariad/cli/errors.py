"""How a command ends: its exit code, and an error line or JSON object that says what to do next."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NoReturn, cast

import click

from tolariad import signals
from tolariad.cli.wrapping import fitted_to
from tolariad.forensics.words import safe

if TYPE_CHECKING:
    from tolariad.control.client import ControlError


class Exit(enum.IntEnum):
    """Exit codes of `tolaria`."""

    DONE = 0
    NO = 1
    USAGE = 2
    NOT_REACHABLE = 3
    REFUSED = 4
    NOT_DURABLE = 5
    INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command. `hint` says what to do or type next."""

    def __init__(self, code: int, what: str, *, hint: str = "", name: str = "Error") -> None:
        self.code = int(code)
        self.what = what
        self.hint = hint
        self.name = name
        super().__init__(what)


# The variable that lets an unexpected exception through.
_TRACEBACK: Final = "TOLARIA_TRACEBACK"
# Of an error reply. A sentence of ours is shorter.
_SAID_CHARACTERS_MAX: Final = 4096
# The name of the error whose text is the help. Its lines are printed without the program's name in front.
_HELP: Final = "Help"
_CONTROL_HINTS: Final = {
    "WrongPhase": "`tolaria status` shows the phase; `tolaria why RUN phase` shows what led to it",
    "PermissionDenied": "ask to be added to the socket's group or to `control.operators`; reading needs no permission",
    "NotDurable": "`tolaria status` shows the state of the journal",
    "Frozen": "`tolaria status` shows why the run is frozen",
    "MethodNotFound": "the daemon is another version; `tolaria call org.varlink.service.GetInfo` shows which",
    "InvalidParameter": "`tolaria call org.varlink.service.GetInterfaceDescription "
    '\'{"interface": "io.esper.tolaria"}\'` shows the parameters',
}


def of_control(error: ControlError) -> CommandError:
    """Return the error of a command for an error reply of the daemon."""
    name = error.name.rpartition(".")[2]
    said = error.parameters.get("why") or " ".join(f"{key} {value}" for key, value in error.parameters.items())
    said = str(said)[:_SAID_CHARACTERS_MAX]
    what = f"{name}: {said}" if said else name
    code = {"NotDurable": Exit.NOT_DURABLE, "InvalidParameter": Exit.USAGE, "MethodNotFound": Exit.USAGE}
    return CommandError(code.get(name, Exit.REFUSED), what, hint=_CONTROL_HINTS.get(name, ""), name=name)


def of_reach(error: Exception) -> CommandError:
    """Return the error of a command if no daemon answers, or if this user may not use the socket."""
    if isinstance(error.__cause__, PermissionError):
        return _of_permission(str(error))
    hint = (
        "this command needs a live run (of the library: with `control.socket: true`): `tolaria list` shows which are "
        "live; `tolariad run --dir RUN` starts one"
    )
    return CommandError(Exit.NOT_REACHABLE, f"no daemon answers: {error}", hint=hint, name="NotReachable")


def _of_permission(what: str) -> CommandError:
    hint = "ask to be added to the group that owns it"
    return CommandError(Exit.REFUSED, what, hint=hint, name="PermissionDenied")


def of_click(error: click.ClickException) -> CommandError:
    """Return the error for wrong usage: the message and how to get help, or the help itself if no command was given."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return CommandError(Exit.USAGE, error.format_message(), name=_HELP)
    context = getattr(error, "ctx", None)
    hint = f"`{context.command_path} --help` shows the usage" if context is not None else ""
    return CommandError(Exit.USAGE, error.format_message(), hint=hint, name="Usage")


_VERIFY: Final = (
    "`tolaria journal verify RUN` checks the whole journal, and names the last event before the damage; up to there "
    "`why`, `state` and `diff` answer (`--at seq:N`)"
)
# Errors of the packages that read a journal, by the name of the class: exit code, name (of the class if empty), hint.
_JOURNAL_ERRORS: Final = {
    "JournalMissing": (Exit.USAGE, "NoRun", "give a run's folder; `tolaria list` shows them"),
    "BadPosition": (Exit.USAGE, "Usage", ""),
    "NoSuchStep": (Exit.NO, "NoSuchStep", "`tolaria events RUN -t RolledBack` shows the branches"),
    "NotReached": (Exit.NO, "NotReached", "`tolaria status` shows how far the run has come"),
    "NoAnswer": (Exit.NO, "NoAnswer", "`tolaria events RUN` lists the events"),
    "JournalError": (Exit.NO, "", _VERIFY),
    "ReplayError": (Exit.NO, "", _VERIFY),
}


def translated(error: Exception) -> CommandError | None:
    """Return the error of a command for a known exception, or None for an unexpected one."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, click.ClickException):
        return of_click(error)
    # Compare names, not classes: importing the classes would load packages that the command does not need.
    names = {kind.__name__ for kind in type(error).__mro__}
    if "ControlError" in names:
        return of_control(cast("ControlError", error))
    if "NotTrusted" in names:
        return CommandError(Exit.NOT_REACHABLE, str(error), name="NotTrusted")
    if "NotReachable" in names:
        return of_reach(error)
    if "BadReply" in names:
        return CommandError(Exit.NOT_REACHABLE, str(error), hint=_CONTROL_HINTS["MethodNotFound"], name="BadReply")
    for kind, (code, name, hint) in _JOURNAL_ERRORS.items():
        if kind in names:
            return CommandError(code, str(error), hint=hint, name=name or type(error).__name__)
    if isinstance(error, OSError):
        # str(error) would show the error number in brackets.
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        refused = isinstance(error, PermissionError)
        return _of_permission(what) if refused else CommandError(Exit.NO, what, name=type(error).__name__)
    return None


def report(error: CommandError, program: str, *, as_json: bool) -> None:
    """Write the error to stderr, as lines or as one JSON object."""
    if as_json:
        import json

        told = {"error": error.name, "what": error.what, "hint": error.hint, "exit_code": error.code}
        print(json.dumps(told), file=sys.stderr)
        return
    for line in error.what.splitlines() or [error.name]:
        put_fitted(safe(line) if error.name == _HELP else f"{program}: {safe(line)}")
    if error.hint:
        put_fitted(f"  {safe(error.hint)}")


def put_fitted(text: str) -> None:
    """Print a line to stderr, broken to fit a terminal; further lines are indented."""
    for line in fitted_to(sys.stderr, text, 2):
        print(line, file=sys.stderr)


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the arguments ask for JSON. It is also known if they cannot be parsed."""
    output = [after for before, after in pairwise(arguments) if before in ("-o", "--output")]
    return "--json" in arguments or "json" in output or "-ojson" in arguments or "--output=json" in arguments


def _defect(error: Exception) -> CommandError:
    """Return the error for an exception that no command expects. Raises it if the user wants its traceback."""
    if os.environ.get(_TRACEBACK):
        raise error
    what = f"the command failed in a way that it should not: {type(error).__name__}: {error}"
    hint = f"please report it, with what {_TRACEBACK}=1 prints; `tolaria journal verify RUN` checks the run's journal"
    return CommandError(Exit.NO, what[:_SAID_CHARACTERS_MAX], hint=hint, name="Defect")


def run_command(command: click.Command, program: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a click command and end the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and given[:1] == ["run"]:
        # Before the daemon's modules are imported, which takes longer than all that comes before.
        signals.hold()
    try:
        code = command.main(args=given, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        code = Exit.INTERRUPTED
    except signals.Terminated as ended:
        put_fitted(f"{program}: SIGTERM came before the run was open; nothing was started")
        code = ended.code
    except (BrokenPipeError, SystemExit):
        # The reader (head, less) closed the pipe; click raises SystemExit for it. Closing stdout at exit would raise
        # once more, so stdout becomes /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = Exit.DONE
    except Exception as error:  # noqa: BLE001 - every command ends with a sentence
        known = translated(error) or _defect(error)
        report(known, program, as_json=wants_json(given))
        code = known.code
    sys.exit(int(code) if isinstance(code, int) else 0)
