"""Kill each port of the everyday scripts to another trainer in mid-epoch, start it again, and record what differs.

`OMP_NUM_THREADS=1 python -m tests.everyday.peers.survive` needs lightning, transformers and accelerate. It writes
`survived.json`, from which the page of the everyday scripts takes its words.

A port saves after each epoch, in the way of its trainer. It is killed by SIGKILL twice in its third epoch, and started
again. The first kill comes before the update of a step. The second comes at the end of the epoch, after `torch.save`
has written the first file of its checkpoint. Its weights at the end are compared with those of a run that was not
killed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import torch

from tests.everyday.killed import saved_in
from tests.everyday.scripts import OTHERS, PEERS, PORTED, RECORD

# Backward passes of a step, for kinds that make several.
_BACKWARDS = {"gan": 2, "accumulation": 4}
_KILLED_AT, _KILLED_AT_OF_40 = 21, 27
_PRELOADED = ("torch._dynamo", *OTHERS, "transformers.trainer", "accelerate.utils", "lightning.pytorch.callbacks")


def main() -> None:
    """Write the record anew."""
    for name in _PRELOADED:
        importlib.import_module(name)
    found = {peer: {kind: survived(peer, kind) for kind in PORTED if port(peer, kind).exists()} for peer in OTHERS}
    record = {"versions": {peer: importlib.metadata.version(peer) for peer in OTHERS}, "survived": found}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def port(peer: str, kind: str) -> Path:
    """Return the path of a port, which may not exist."""
    return PEERS / peer / f"{kind}.py"


def survived(peer: str, kind: str) -> dict[str, str]:
    """Return `exact`, `differs`, or `fails` if the second start ended with an error, for both kills."""
    passes = _BACKWARDS.get(kind, 1) * (_KILLED_AT_OF_40 if kind == "reinforcement" else _KILLED_AT)
    script, found = port(peer, kind), {}
    with tempfile.TemporaryDirectory() as calm:
        assert _run(script, calm) == 0, f"{peer}, {kind}: {Path(calm, 'log').read_text()[-4000:]}"
        for when in ("step", "saving"):
            with tempfile.TemporaryDirectory() as killed:
                assert _run(script, killed, passes, when) == -signal.SIGKILL, f"{peer}, {kind}: it was not killed"
                failed = _run(script, killed)
                if failed:
                    print(Path(killed, "log").read_text()[-700:])
                same = saved_in(Path(killed)) == saved_in(Path(calm))
                found[when] = "fails" if failed else "exact" if same else "differs"
    print(f"{peer}, {kind}: {found}", flush=True)
    return found


def _run(script: Path, folder: str, passes: int | None = None, when: str = "") -> int:
    """Run the script in a fork; kill it at its backward pass of this number. Return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.chdir(folder)
        log = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = [str(script)]
        if passes is not None:
            _arm(passes, when)
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _arm(passes: int, when: str) -> None:
    """Kill the process after so many backward passes, at once or when it has then saved a file of a checkpoint."""
    backward, save, made = torch.Tensor.backward, torch.save, [0]

    def counting(*given: object, **more: object) -> None:
        backward(*given, **more)
        made[0] += 1
        if made[0] == passes and when == "step":
            os.kill(os.getpid(), signal.SIGKILL)

    def saving(value: object, target: object, *given: object, **more: object) -> None:
        save(value, target, *given, **more)
        # What the scripts save themselves lies in their own folder.
        if made[0] >= passes and when == "saving" and target != "best.pt":
            os.kill(os.getpid(), signal.SIGKILL)

    torch.Tensor.backward, torch.save = counting, saving


if __name__ == "__main__":
    main()
