"""Fault class 5: every system call of the writer fails in every way, by a library loaded before the C library.

One process with the library starts, imports everything, and forks a child for each case. The child arms one fault,
works until it is done, frozen or dead, and reports its acknowledgements through a pipe. A case takes some milliseconds,
so all cases can run. Everything below Python's `os` is real.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tests.journal.faults.harness import Acks, PipedAcks, Plan, examine, torn_journal, work

SOURCE = Path(__file__).with_name("preload.c")
CALLS = ("pwrite", "fsync", "fdatasync", "fallocate", "rename", "open", "ftruncate", "unlink")
# How, as the library numbers it, and with which error.
FAULTS = {
    "EIO": (1, errno.EIO),
    "ENOSPC": (1, errno.ENOSPC),
    "EDQUOT": (1, errno.EDQUOT),
    "EINTR": (1, errno.EINTR),
    "EROFS": (1, errno.EROFS),
    "short": (2, 0),
    "torn, killed": (3, 0),
    "killed before": (4, 0),
    "killed after": (5, 0),
    "lost": (6, 0),
    "bit flipped": (7, 0),
}
# A call that reports success without doing its work. No writer can prevent the loss, but it must be found.
LIES = ("lost", "bit flipped")
PLACES = range(1, 21)
# How often the drawn cases' workload makes each call, about: a drawn fault that is never reached shows little.
OFTEN = {"pwrite": 20, "fsync": 20, "open": 20, "rename": 4, "unlink": 2}
PATIENCE_S = 60.0


class Case(msgspec.Struct, frozen=True):
    """One injected fault."""

    call: str
    fault: str
    place: int


class Outcome(msgspec.Struct, frozen=True):
    """How a child ended, whether its fault occurred, and its reports."""

    status: int
    reached: bool
    said: bytes
    stderr: str


class Job(msgspec.Struct, frozen=True):
    """The work of one child."""

    case: Case
    folder: str
    plan: Plan
    acked: int


def all_cases() -> list[Case]:
    """Return every fault of every call at its first to twentieth call, if the fault has a meaning for the call."""
    data_only = {"short", "torn, killed", "bit flipped"}
    return [
        Case(call, fault, place)
        for call in CALLS
        for fault in FAULTS
        for place in PLACES
        if (call == "pwrite" or fault not in data_only) and not (call == "open" and fault == "lost")
    ]


def build(folder: Path) -> Path:
    """Compile the library. Raises CalledProcessError."""
    library = folder / "preload.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, capture_output=True)
    return library


class Forks:
    """The process with the library, from the tests' side."""

    def __init__(self, library: Path) -> None:
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        command = [sys.executable, "-m", "tests.journal.faults.preloaded", str(library)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def run(self, job: Job) -> Outcome:
        """Run one child from its fork to its end."""
        asking, answering = self._process.stdin, self._process.stdout
        if asking is None or answering is None:
            raise ValueError("the process has no pipes")
        asking.write(msgspec.json.encode(job) + b"\n")
        asking.flush()
        return msgspec.json.decode(answering.readline(), type=Outcome)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=PATIENCE_S)


def serve(library: Path) -> None:
    """Run in the process with the library: fork a child for each line of stdin, print an outcome for each."""
    shim = ctypes.CDLL(str(library))
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=Job)
        sys.stdout.buffer.write(msgspec.json.encode(fork_one(shim, job)) + b"\n")
        sys.stdout.buffer.flush()


def fork_one(shim: ctypes.CDLL, job: Job) -> Outcome:
    """Fork, arm and work; collect the child's reports."""
    acks_read, acks_write = os.pipe()
    errors_read, errors_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(errors_write, 2)
        be_the_writer(shim, job, acks_write)
    os.close(acks_write)
    os.close(errors_write)
    with os.fdopen(acks_read, "rb") as acks, os.fdopen(errors_read, "rb") as errors:
        said = acks.read()
        stderr = errors.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # The last byte says whether the fault was reached; a child that was killed has reached it.
    whole = len(said) // 16 * 16
    return Outcome(status, said[whole:] == b"r" or status < 0, said[:whole], stderr.decode(errors="replace"))


def be_the_writer(shim: ctypes.CDLL, job: Job, acks: int) -> None:
    """Run the child. Never returns."""
    status = 9
    try:
        how, code = FAULTS[job.case.fault]
        shim.preload_arm(job.folder.encode(), job.case.call.encode(), how, code, job.case.place)
        status = work(Path(job.folder), job.plan, PipedAcks(acks, job.acked))
        os.write(acks, b"r" if shim.preload_count() >= job.case.place else b"n")
    except BaseException as error:
        print(f"a defect: {error!r}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(status)


class Campaign:
    """Cases run one after the other, each on a fresh copy of a torn journal."""

    def __init__(self, forks: Forks, folder: Path, seed: int) -> None:
        self.forks, self.folder, self.rng = forks, folder, random.Random(seed)
        self.counts: Counter[str] = Counter(lost=0, wrong=0, defects=0)
        self.torn = folder / "torn"
        self.acked = torn_journal(self.torn, Plan(seed="before", turns=6))

    def run(self, cases: Iterable[Case]) -> Counter[str]:
        """Run all cases; print each one that finds a fault."""
        for number, case in enumerate(cases):
            found = self._one(case, self.folder / f"case-{number}")
            if found["lost"] or found["wrong"] or found["defects"]:
                print(f"class 5, {case}: {dict(found)}")
            self.counts.update(found)
        return self.counts

    def _one(self, case: Case, folder: Path) -> Counter[str]:
        shutil.copytree(self.torn, folder)
        background, tabulated = self.rng.random() < 0.3, self.rng.random() < 0.3
        plan = Plan(seed=str(self.rng.random()), turns=14, background=background, tabulated=tabulated)
        outcome = self.forks.run(Job(case, str(folder), plan, self.acked))
        acks = PipedAcks.heard(outcome.said, self.acked)
        counts = Counter({"cases": 1, "reached": int(outcome.reached)})
        counts[ending(outcome)] += 1
        if outcome.status not in (0, 3, -signal.SIGKILL):
            print(f"{case}: status {outcome.status}, {outcome.stderr}")
            counts["defects"] += 1
        counts.update(judged(folder, plan, acks, case))
        shutil.rmtree(folder)
        return counts


def ending(outcome: Outcome) -> str:
    """Return how a child ended, for the counts."""
    return {0: "went on", 3: "failed or refused"}.get(outcome.status, "killed")


def judged(folder: Path, plan: Plan, acks: Acks, case: Case) -> Counter[str]:
    """Check the result of the next start."""
    found = examine(folder, plan, acks)
    if case.fault not in LIES:
        found["wrong"] += sum(number for what, number in found.items() if what.startswith("refused"))
        found["wrong"] += found.pop("not clean at the end", 0)
        return found
    # Behind a lie an honest disk has gone on: so a loss must have been refused, and what opens has everything.
    found["damage found by verify only"] = found.pop("not clean at the end", 0)
    return found


def drawn(number: int, seed: int) -> Iterator[Case]:
    """Draw this many cases from the calls that the journal makes at all."""
    never = ("fdatasync", "fallocate", "ftruncate")
    cases = [case for case in all_cases() if case.call not in never and case.place <= OFTEN[case.call]]
    return iter(random.Random(seed).sample(cases, number))


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
