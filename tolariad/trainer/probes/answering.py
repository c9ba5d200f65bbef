"""Try something, and print one JSON object: the answer, or why there is none.

Promises: stdout holds the answer only; what the task prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_DAMAGED, EXIT_FAILED, EXIT_IO
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.storage import CheckpointUnfit, CheckpointUnusable
from tolariad.trainer.errors import SetupRefused, TaskRaised
from tolariad.trainer.probes.costs import estimate
from tolariad.trainer.probes.evaluation import evaluate
from tolariad.trainer.probes.exporting import export_state
from tolariad.trainer.probes.messages import (
    AnyTrial,
    EstimateCosts,
    Evaluate,
    ExportState,
    FindRows,
    ProfileSteps,
    Refused,
    SweepRates,
    TakeWeights,
)
from tolariad.trainer.probes.profiling import NotWritten, profiled
from tolariad.trainer.probes.rate_sweep import sweep
from tolariad.trainer.probes.rows import find_rows
from tolariad.trainer.probes.weights_file import take_weights
from tolariad.trainer.process.own_frames import shown
from tolariad.trainer.torch_private import light_start

if TYPE_CHECKING:
    from collections.abc import Callable

_WORK: Final[dict[type, Callable[..., msgspec.Struct]]] = {
    EstimateCosts: estimate,
    Evaluate: evaluate,
    SweepRates: sweep,
    ProfileSteps: profiled,
    ExportState: export_state,
    TakeWeights: take_weights,
    FindRows: find_rows,
}


def answer() -> int:
    """Try what the request on stdin describes, and print the answer. Return the exit code: 0 if there is one."""
    # ^C is for the command that waits for this process: end without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    light_start.install()
    trial = msgspec.json.decode(sys.stdin.buffer.read(), type=AnyTrial)
    with contextlib.redirect_stdout(sys.stderr):
        found, code = tried(trial)
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    return code


def tried(trial: AnyTrial) -> tuple[msgspec.Struct, int]:
    """Return the answer and 0, or `Refused` and the exit code of the command."""
    held = f"checkpoint {trial.weights.id}" if trial.weights else ""
    try:
        return _WORK[type(trial)](trial), 0
    except TaskRaised as refused:
        return Refused(str(refused), shown(refused.__cause__ or refused)), EXIT_CONFIG
    except CheckpointUnfit as error:
        return Refused(f"{held} does not fit the model that the task builds: {error}"), EXIT_CONFIG
    except CheckpointUnusable as error:
        hint = "choose another one with --checkpoint; `tolaria checkpoints RUN --verify` checks all of them"
        return Refused(f"{held} does not verify: {error}", hint=hint), EXIT_DAMAGED
    except NotWritten as error:
        return Refused(str(error)), EXIT_IO
    except (SetupRefused, ConfigError) as refused:
        return Refused(str(refused)), EXIT_CONFIG
    except Exception as error:  # noqa: BLE001 - a task may raise anything; the exception is the answer
        code = EXIT_CONFIG if isinstance(trial, EstimateCosts) else EXIT_FAILED
        return Refused(f"the task raises {type(error).__name__}: {error}", shown(error)), code
