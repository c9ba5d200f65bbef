"""Strategies that hang, die, lie and flood, for test_strategist.py. Each class is one way."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from tolariad.leyline import (
    AdaptationCommand,
    CommandOptimizerAdjustment,
    CommandSeedOperation,
    CommandType,
    SeedOperation,
)

HEADER = struct.Struct("<IBQ")
READY, COMMAND, STATE = 16, 17, 18


def channel() -> int:
    """The descriptor of the connection to the daemon: a lie may write to it."""
    return int(sys.argv[sys.argv.index("--socket-fd") + 1])


def pause(name="p"):
    return AdaptationCommand(version=1, command_id=name, command_type=CommandType.COMMAND_PAUSE)


class Honest:
    """Counts its questions; the count is its state. It refuses to go back to a count above 100."""

    def __init__(self):
        self.count = 0

    def step(self, packet):
        self.count += 1
        return pause(f"{packet.current_epoch}:{self.count}")

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]

    def prepare_rollback(self, state):
        if state["count"] > 100:
            raise ValueError("that is too far")


class Faulty(Honest):
    """Does what the packet's `experiment_name` says, a name of FAULTS, and then answers as an honest one."""

    rubbish = ""

    def step(self, packet):
        answer = super().step(packet)
        if not packet.experiment_name:
            return answer
        wrong = FAULTS[packet.experiment_name](self, packet.current_epoch)
        return answer if wrong is None else wrong

    def state_dict(self):
        return super().state_dict() | ({"rubbish": self.rubbish} if self.rubbish else {})

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.rubbish = ""


def sends(data: bytes, then=lambda: time.sleep(600)):
    """Write to the connection, past the process's own code."""
    os.write(channel(), data)
    then()


def a_thousand_frames(_, generation):
    body = pause().SerializeToString()
    for _ in range(1000):
        os.write(channel(), HEADER.pack(len(body), COMMAND, generation) + body)


def forks_children(*_):
    """Start children that hold the connection open, and hang."""
    for _ in range(25):
        if os.fork() == 0:
            time.sleep(600)
    for _ in range(2):
        program = (sys.executable, "-S", "-c", "import time; time.sleep(600)", *sys.argv)
        subprocess.Popen(program, close_fds=False)
    time.sleep(600)


def raises(*_):
    raise ValueError("no idea what to do")


def recurses(strategy, asked):
    # Python 3.13.0 sets no bound to calls of a function with *arguments.
    recurses(strategy, asked)


def remembers_too_much(strategy, _):
    strategy.rubbish = "x" * 100_000


def remembers_an_object(strategy, _):
    strategy.rubbish = object()


def nothing(*_):
    class Nothing:
        def __bool__(self):
            return False

    return Nothing()


UNKNOWN_SEED = AdaptationCommand(
    version=1,
    command_id="c",
    command_type=CommandType.COMMAND_SEED,
    target_seed_id="nobody",
    seed_operation=CommandSeedOperation(operation=SeedOperation.SEED_OP_CULL),
)
NOT_A_NUMBER = AdaptationCommand(
    version=1,
    command_id="c",
    command_type=CommandType.COMMAND_OPTIMIZER,
    optimizer_adjustment=CommandOptimizerAdjustment(hyperparameters={"lr": float("nan")}),
)
OTHER_VERSION = AdaptationCommand(version=2, command_id="c", command_type=CommandType.COMMAND_PAUSE)
FAULTS = {
    # The process goes on.
    "raises": raises,
    "recurses": recurses,
    "returns text": lambda *_: "pause",
    "returns an object": nothing,
    "a thousand commands": lambda *_: [pause(str(n)) for n in range(1000)],
    "an unknown seed": lambda *_: [pause(), UNKNOWN_SEED],
    "not a number": lambda *_: NOT_A_NUMBER,
    "another version": lambda *_: OTHER_VERSION,
    "remembers too much": remembers_too_much,
    "remembers an object": remembers_an_object,
    # The process is killed, or has ended.
    "hangs": lambda *_: time.sleep(600),
    # In a call of C that holds the interpreter's lock, so that no thread of Python runs.
    "hangs in C": lambda *_: ctypes.PyDLL(None).sleep(600),
    "exits": lambda *_: sys.exit(3),
    "leaves hard": lambda *_: os._exit(0),
    "segfaults": lambda *_: ctypes.string_at(0),
    "garbage": lambda *_: sends(os.urandom(4096)),
    "half a frame, and the end": lambda _, n: sends(HEADER.pack(100, COMMAND, n) + b"half", lambda: os._exit(1)),
    "half a header": lambda _, n: sends(HEADER.pack(100, COMMAND, n)[:7]),
    "four gigabytes": lambda _, n: sends(HEADER.pack(0xFFFFFFFF, COMMAND, n)),
    "another generation": lambda *_: sends(HEADER.pack(1, STATE, 777) + b"\xc0"),
    "a thousand frames": a_thousand_frames,
    "a state that is none": lambda _, n: sends(HEADER.pack(3, STATE, n) + b"\xc1\xc1\xc1"),
    "forks children": forks_children,
}


class Prints(Honest):
    """Prints a line for each question, and one to stderr."""

    def step(self, packet):
        print("thinking about epoch", packet.current_epoch)
        print("not sure", file=sys.stderr)
        return super().step(packet)


class Floods(Honest):
    """A thread of it prints without end; its answers are good."""

    def step(self, packet):
        if self.count == 0:
            threading.Thread(target=self.print, daemon=True).start()
        return super().step(packet)

    def print(self):
        while True:
            os.write(1, b"x" * 99 + b"\n" + b"y" * 899 + b"\n")


class HangsAtLoading(Honest):
    def load_state_dict(self, state):
        time.sleep(600)


class RefusesItsState(Honest):
    def load_state_dict(self, state):
        raise KeyError("count")


class HangsAtVote(Honest):
    def prepare_rollback(self, state):
        time.sleep(600)


class HangsAtStart(Honest):
    """Hangs at its first start; the file beside it counts the starts."""

    def __init__(self):
        super().__init__()
        starts = Path("starts")
        with starts.open("a") as file:
            file.write(".")
        if len(starts.read_text()) == 1:
            time.sleep(600)


class DiesAtStart(Honest):
    def __init__(self):
        os._exit(5)


class NoTextAtStart(Honest):
    """Says READY itself, with a text that is no UTF-8."""

    def __init__(self):
        body = msgspec.msgpack.encode({"source_hash": "hash", "state": b""}).replace(b"hash", b"\xff\xfe\xfd\xfc")
        sends(HEADER.pack(len(body), READY, 0) + body)


class Stateless:
    """Has no state."""

    def step(self, packet):
        return pause()
