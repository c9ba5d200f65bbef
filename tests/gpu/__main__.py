"""Run everything that needs a CUDA device, and print one table. The standard library only: nothing else is there yet.

    python -m tests.gpu [--wheels FOLDER] [--device cuda:0] [--logs FOLDER] [--minutes 8]

The interpreter must have torch 2.11 or newer, and NumPy. What else is needed is unpacked from the wheels into a
temporary folder, and found before what the machine has. Each part is a process with a limit of time. One that fails or
hangs is a row of the table, and the others go on. Without a device it says so, and does nothing. `--device cpu` tries
the script itself, with small sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

from tests.gpu.wheels import ROOT, unpack

# Seconds that a part may take at most, in the order in which they run. The last ones get what is left of all.
LIMITS = {
    "device": 40,
    "tests": 110,
    "bf16, plain and recorded": 70,
    "checkpoint and rollback": 70,
    "kill and resume": 90,
    "NaN": 40,
    "out of memory": 45,
    "a killed process that held the device": 50,
    "bf16, compiled": 150,
    "kill and resume, compiled": 120,
}
_RESULT = "RESULT "
_LEAST_S = 8.0
_WIDTH = 118


class Row(NamedTuple):
    """What came of a part. `ok`: None if it did not run."""

    name: str
    ok: bool | None
    text: str
    seconds: float


def device_of(python: str, wanted: str, environment: dict[str, str]) -> tuple[str, str]:
    """Return the device to use and its name; if there is none, an empty text and the reason."""
    code = (
        "import json, torch\n"
        "there = torch.cuda.is_available()\n"
        "print(json.dumps([torch.__version__, torch.cuda.get_device_name(0) if there else '']))"
    )
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment, check=False)
    if found.returncode:
        last = (found.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        return "", f"{python} cannot import torch ({last})"
    version, name = json.loads(found.stdout.splitlines()[-1])
    if wanted == "cpu":
        return "cpu", f"no device (the script is tried on the CPU), torch {version}"
    if not name:
        return "", f"torch {version} sees no CUDA device here"
    return wanted, name


def run_part(
    name: str, command: list[str], environment: dict[str, str], log: Path, limit_s: float, folder: Path = ROOT
) -> Row:
    """Run one part as a process group, and end that after its time."""
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also what it left running.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    seconds = time.monotonic() - begun
    lines = log.read_text(errors="replace").splitlines()
    result = next((line for line in reversed(lines) if line.startswith(_RESULT)), None)
    if result is not None:
        row = json.loads(result.removeprefix(_RESULT))
        return Row(name, row["ok"], row["text"], seconds)
    if seconds >= limit_s:
        return Row(name, False, f"did not end within {limit_s:.0f} s", seconds)
    last = next((line for line in reversed(lines) if line.strip()), "")
    return Row(name, False, f"ended with {process.returncode}: {last[-200:]}", seconds)


def table(title: str, rows: list[Row]) -> str:
    """Return the rows as text."""
    width = max((len(row.name) for row in rows), default=0)
    return "\n".join([title, "", *(line for row in rows for line in lines_of(row, width))])


def lines_of(row: Row, width: int) -> list[str]:
    """Return the lines of one row; names are as wide as `width`."""
    word = {True: "ok", False: "FAILED", None: "not run"}[row.ok]
    first, *more = textwrap.wrap(row.text, _WIDTH - width - 19) or [""]
    head = f"{row.name:{width}}  {word:7} {row.seconds:5.0f} s  "
    return [head + first, *(" " * len(head) + line for line in more)]


def main() -> int:
    """Return 0 if every part is as promised, or there is no device; 1 if one is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / ".gpu-wheels")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--logs", type=Path, help="keep the output of each part, and the table, in this folder")
    parser.add_argument("--minutes", type=float, default=7.8, help="for everything together")
    parser.add_argument("--only", action="append", choices=LIMITS, help="this part; repeatable")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    # Runs write their journals here, and need a real file system: not the memory that /tmp may be.
    with tempfile.TemporaryDirectory(prefix="tolaria-gpu-", ignore_cleanup_errors=True) as folder:
        packages = Path(folder) / "packages"
        unpacked = unpack(given.wheels, packages) if given.wheels.is_dir() else []
        environment = environment_for(Path(folder), packages)
        device, title = device_of(sys.executable, given.device, environment)
        if not device:
            print(f"{title}. Nothing was run. (`--device cpu` tries the script itself, with small sizes.)")
            return 0
        print(f"{title}; {len(unpacked)} packages unpacked", flush=True)
        rows = run_all(given, device, title, environment, Path(folder), end)
    text = table(title, rows)
    print(f"\n{text}", flush=True)
    if given.logs is not None:
        (given.logs / "table.txt").write_text(text + "\n")
    return 1 if any(row.ok is False for row in rows) else 0


def environment_for(folder: Path, packages: Path) -> dict[str, str]:
    """Return the environment of all parts: homes of their own, and the unpacked packages before the machine's."""
    path = os.pathsep.join(filter(None, (str(ROOT), str(packages), os.environ.get("PYTHONPATH"))))
    own = {"HOME": "home", "XDG_RUNTIME_DIR": "runtime", "XDG_CACHE_HOME": "cache", "TMPDIR": "tmp"}
    places = {name: str(folder / place) for name, place in own.items()}
    for place in places.values():
        Path(place).mkdir(mode=0o700)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **clean,
        **places,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TOLARIA_ALLOW_FILESYSTEM": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        # Packages of the user are found although the home is another one.
        "PYTHONUSERBASE": site.getuserbase(),
    }


def run_all(
    given: argparse.Namespace, device: str, title: str, environment: dict[str, str], folder: Path, end: float
) -> list[Row]:
    """Run the parts one after the other. Print each row as soon as it is there: the rest may be cut off."""
    logs = given.logs or folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (name, limit_s) in enumerate(LIMITS.items()):
        if given.only and name not in given.only:
            continue
        left = end - time.monotonic()
        if left < _LEAST_S:
            rows.append(Row(name, None, "no time was left", 0.0))
            continue
        command = [sys.executable, "-m", "tests.gpu.parts", name, "--device", device]
        command += ["--folder", str(folder / f"part-{number}"), *(["--small"] if device == "cpu" else [])]
        rows.append(run_part(name, command, environment, logs / f"{number}.log", min(limit_s, left)))
        print("\n".join(lines_of(rows[-1], max(map(len, LIMITS)))), flush=True)
        if given.logs is not None:
            (given.logs / "table.txt").write_text(table(title, rows) + "\n")
    return rows


if __name__ == "__main__":
    sys.exit(main())
