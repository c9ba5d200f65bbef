"""How a command ends: exit codes, and one error line (or one JSON object) that says what to do next.

It must not know: any command.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NoReturn, cast

import click

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
    """Ends a command. `hint` is what to type next."""

    def __init__(self, code: int, what: str, *, hint: str = "", name: str = "Error") -> None:
        self.code = int(code)
        self.what = what
        self.hint = hint
        self.name = name
        super().__init__(what)


# An error whose text is the help: nobody's words, so nobody is named before each of its lines.
_HELP: Final = "Help"
_CONTROL_HINTS: Final = {
    "WrongPhase": "`tolaria status` shows the phase, `tolaria why RUN phase` how it came to it",
    "PermissionDenied": "ask for a place in the socket's group or in `control.operators`; reading needs none",
    "NotDurable": "`tolaria status` shows the state of the journal",
    "Frozen": "`tolaria status` says what stands in the way",
    "MethodNotFound": "the daemon is of another version; `tolaria call org.varlink.service.GetInfo` shows it",
    "InvalidParameter": "`tolaria call org.varlink.service.GetInterfaceDescription "
    '\'{"interface": "io.esper.tolaria"}\'` shows what it takes',
}


def of_control(error: ControlError) -> CommandError:
    """An error reply as the end of a command."""
    name = error.name.rpartition(".")[2]
    said = error.parameters.get("why") or " ".join(f"{key} {value}" for key, value in error.parameters.items())
    what = f"{name}: {said}" if said else name
    code = {"NotDurable": Exit.NOT_DURABLE, "InvalidParameter": Exit.USAGE, "MethodNotFound": Exit.USAGE}
    return CommandError(code.get(name, Exit.REFUSED), what, hint=_CONTROL_HINTS.get(name, ""), name=name)


def of_reach(error: Exception) -> CommandError:
    """Nobody answers, or the socket is not for this user."""
    if isinstance(error.__cause__, PermissionError):
        return _of_permission(str(error))
    hint = "`tolaria list` shows the runs there are; `tolariad run … --dir RUN` starts one"
    return CommandError(Exit.NOT_REACHABLE, f"not reachable: {error}", hint=hint, name="NotReachable")


def _of_permission(what: str) -> CommandError:
    return CommandError(Exit.REFUSED, what, hint="ask for a place in the group that owns it", name="PermissionDenied")


def of_click(error: click.ClickException) -> CommandError:
    """A usage error, with the way to the help; where no command was given, the help itself."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return CommandError(Exit.USAGE, error.format_message(), name=_HELP)
    context = getattr(error, "ctx", None)
    hint = f"`{context.command_path} --help` shows what it takes" if context is not None else ""
    return CommandError(Exit.USAGE, error.format_message(), hint=hint, name="Usage")


def translated(error: Exception) -> CommandError | None:
    """A known error of the rooms below as the end of a command; None for one that nobody expects."""
    match error:
        case CommandError():
            return error
        case click.ClickException():
            return of_click(error)
    # Looked up by name, so that a command does not load the rooms whose errors it can never see.
    names = {kind.__name__ for kind in type(error).__mro__}
    if "ControlError" in names:
        return of_control(cast("ControlError", error))
    return of_reach(error) if "NotReachable" in names else _of_journal(error, names)


def _of_journal(error: Exception, names: set[str]) -> CommandError | None:
    if "JournalMissing" in names:
        return CommandError(Exit.USAGE, str(error), hint="name a run's folder; `tolaria list` shows them", name="NoRun")
    if "BadPosition" in names:
        return CommandError(Exit.USAGE, str(error), name="Usage")
    if "NoSuchStep" in names:
        return CommandError(
            Exit.NO, str(error), hint="`tolaria events RUN -t RolledBack` shows the branches", name="NoSuchStep"
        )
    if "NotReached" in names:
        return CommandError(Exit.NO, str(error), hint="`tolaria status` shows how far the run is", name="NotReached")
    if "NoAnswer" in names:
        return CommandError(Exit.NO, str(error), hint="`tolaria events RUN` shows what there is", name="NoAnswer")
    if names & {"JournalError", "ReplayError"}:
        hint = "`tolaria journal verify RUN` looks at all of it"
        return CommandError(Exit.NO, str(error), hint=hint, name=type(error).__name__)
    if isinstance(error, OSError):
        # Without the number and the brackets of Python's own words.
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        refused = isinstance(error, PermissionError)
        return _of_permission(what) if refused else CommandError(Exit.NO, what, name=type(error).__name__)
    return None


def report(error: CommandError, program: str, *, as_json: bool) -> None:
    """Write the error to stderr."""
    if as_json:
        import json

        told = {"error": error.name, "what": error.what, "hint": error.hint, "exit_code": error.code}
        print(json.dumps(told), file=sys.stderr)
        return
    for line in error.what.splitlines() or [error.name]:
        print(safe(line) if error.name == _HELP else f"{program}: {safe(line)}", file=sys.stderr)
    if error.hint:
        print(f"  {safe(error.hint)}", file=sys.stderr)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` was asked for; known before, and also without, the arguments being understood."""
    output = [after for before, after in pairwise(arguments) if before in ("-o", "--output")]
    return "--json" in arguments or "json" in output or "-ojson" in arguments or "--output=json" in arguments


def run_command(command: click.Command, program: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a click command and end the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = command.main(args=given, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        code = Exit.INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader (head, less) has seen enough; click makes an exit of it. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = Exit.DONE
    except Exception as error:
        known = translated(error)
        if known is None:
            raise
        report(known, program, as_json=wants_json(given))
        code = known.code
    sys.exit(int(code) if isinstance(code, int) else 0)
