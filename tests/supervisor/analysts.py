"""Processes that answer requests of an analysis, rightly or not, for test_analyst.py: `python analysts.py NAME ...`."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from tolariad import lifelines
from tolariad.core.calc.pruning.analysis import AnalysedGroup, AnalysisAnswer
from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.core.calc.pruning.cost import Cut
from tolariad.core.calc.pruning.verdict import MaskMeasure, PruningDecision
from tolariad.leyline import StructuralPruningResponse, pruning

WIDTH = 200
# The units are rows of ten numbers; the model has a head besides.
SHAPE = (WIDTH, 10)
CUTS = (Cut(0, 0, (1,)),)
PARAMETERS = 2_200
NAN = float("nan")


def honest(request):
    """Take the first two live units, and write the importance file."""
    live = [unit for unit in range(WIDTH) if unit not in request.masked.get("conv", ())]
    if request.output:
        file = Path(option("--run"), request.output)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"scores")
    return AnalysisAnswer(
        cycle=request.cycle,
        checkpoint=request.checkpoint,
        decision=PruningDecision.GO,
        measured=MaskMeasure(
            accuracy_before=0.9, accuracy=0.9, gradient_norm_before=1.0, gradient_norm=1.0, layer_share=0.1
        ),
        groups=(AnalysedGroup(name="conv", kind=UnitKind.CHANNEL, width=WIDTH, channels=1, cuts=CUTS),),
        shapes=(SHAPE,),
        parameters=PARAMETERS,
        parameters_masked=20,
        units={"conv": tuple(live[:2])},
        scores={"conv": (0.25, 0.5)},
        masks_sha256="0" * 64,
        plan="{}",
        estimator="fisher",
        correlation=0.75,
        sampled=16,
        stability=0.5,
        samples=1000,
        refused=("out: its channels are outputs of the model",),
        file_bytes=len(b"scores") if request.output else 0,
        seconds=1.5,
        cpu_seconds=1.0,
    )


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def hangs(*_):
    time.sleep(600)


def forks(*_):
    """Leave children that hold the connection and the output open, and hang."""
    for _ in range(5):
        if os.fork() == 0:
            time.sleep(600)
    subprocess.Popen((sys.executable, "-S", "-c", "import time; time.sleep(600)", *sys.argv), close_fds=False)
    time.sleep(600)


def sends(data):
    def act(connection, *_):
        connection.sendall(data)
        time.sleep(600)

    return act


def other_request(connection, request, _):
    connection.sendall(pruning.framed(pruning.write_answer(request, honest(request), "another", "r")))
    time.sleep(600)


def twice(connection, request, request_id):
    """Two sets of one group."""
    message = StructuralPruningResponse.FromString(pruning.write_answer(request, honest(request), request_id, "r"))
    message.analysis_result.units.append(message.analysis_result.units[0])
    connection.sendall(pruning.framed(message.SerializeToString()))


def fails(connection, _, request_id):
    connection.sendall(pruning.framed(pruning.write_failure("The model cannot be analysed: no.", request_id, "r")))


def without_file(request):
    answer = honest(request)
    Path(option("--run"), request.output).unlink()
    return answer


def of(**fields):
    return lambda request: replace(honest(request), **fields)


def measured(**fields):
    return lambda request: replace(honest(request), measured=replace(honest(request).measured, **fields))


# The loss rises by a tenth.
by_loss = measured(accuracy_before=1.0, accuracy=0.9, loss_before=0.5, spread=0.1)

# Answers that are complete, but must be refused.
LIES = {
    "another checkpoint": of(checkpoint="c000099"),
    "another cycle": of(cycle=77),
    "an unknown group": of(units={"dense": (0, 1)}, scores={"dense": (0.1, 0.2)}),
    "a unit out of range": of(units={"conv": (0, WIDTH)}),
    "a masked unit": of(units={"conv": (8, 9)}),
    "a rejected unit": of(units={"conv": (0, 50)}),
    "unordered units": of(units={"conv": (3, 1)}),
    "a score that is NaN": of(scores={"conv": (0.1, NAN)}),
    "too few scores": of(scores={"conv": (0.1,)}),
    "a correlation that is NaN": of(correlation=NAN),
    "an accuracy that is NaN": measured(accuracy=NAN),
    "a hidden drop": measured(accuracy=0.5),
    "more than the budget": of(
        units={"conv": tuple(range(11, 31))}, scores={"conv": (0.1,) * 20}, parameters_masked=200
    ),
    "fewer parameters than its units have": of(parameters_masked=10),
    "parameters that are not there": of(shapes=()),
    "more parameters in its groups than in the model": of(parameters=1_999),
    "no hash": of(masks_sha256="0"),
    "a narrower group": of(groups=(AnalysedGroup(name="conv", kind=UnitKind.CHANNEL, width=5, channels=1),)),
    "no groups, but units": of(groups=()),
    "a doubt without a reason": of(decision=PruningDecision.CONDITIONAL_GO, units={}, scores={}, parameters_masked=0),
    "no file": without_file,
}


def starves(connection, request, request_id):
    """Get no core as an idle process; answer as an ordinary one."""
    if option("--priority") == "idle":
        hangs(connection, request, request_id)
    connection.sendall(pruning.framed(pruning.write_answer(request, honest(request), request_id, "r")))


def takes_turns(connection, request, request_id):
    """Hang as an idle process; as an ordinary one answer after it was stopped and continued twice."""
    if option("--priority") == "idle":
        hangs(connection, request, request_id)
    continued = []
    signal.signal(signal.SIGCONT, lambda *_: continued.append(1))
    while len(continued) < 2:
        time.sleep(0.005)
    connection.sendall(pruning.framed(pruning.write_answer(request, honest(request), request_id, "r")))


def tells(connection, _, request_id):
    """Say on which cores it shall run, with which priority, and whether it is in the session of its parent."""
    session = "same" if os.getsid(0) == os.getsid(os.getppid()) else "own"
    why = f"cores {option('--cores')}, {option('--priority')}, session {session}"
    connection.sendall(pruning.framed(pruning.write_failure(why, request_id, "r")))


ACTS = {
    "hangs": hangs,
    "hangs in C": lambda *_: ctypes.PyDLL(None).sleep(600),
    "exits": lambda *_: sys.exit(3),
    "segfaults": lambda *_: ctypes.string_at(0),
    "forks children": forks,
    "garbage": sends(os.urandom(4096)),
    "four gigabytes": sends(struct.pack("<I", 0xFFFFFFFF)),
    "half an answer": lambda connection, *_: connection.sendall(struct.pack("<I", 100) + b"half"),
    "no message": sends(struct.pack("<I", 3) + b"\xff\xff\xff"),
    "another request": other_request,
    "one group twice": twice,
    "says why not": fails,
}
# What they do depends on how they were started.
PLACED = {"starves": starves, "takes turns": takes_turns, "tells": tells}


def main():
    name = sys.argv[1]
    lifelines.become_helper(int(option("--parent-pid")), int(option("--socket-fd")))
    with socket.socket(fileno=int(option("--socket-fd"))) as connection, connection.makefile("rb") as stream:
        request, request_id = pruning.read_request(stream.read(pruning.length_of(stream.read(pruning.LENGTH_BYTES))))
        if name in PLACED:
            PLACED[name](connection, request, request_id)
        elif name in ACTS:
            ACTS[name](connection, request, request_id)
        else:
            answer = {**LIES, "honest, by a loss": by_loss}.get(name, honest)(request)
            connection.sendall(pruning.framed(pruning.write_answer(request, answer, request_id, "r")))


if __name__ == "__main__":
    main()
