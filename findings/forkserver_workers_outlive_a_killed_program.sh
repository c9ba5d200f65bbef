#!/bin/sh
# Guess: workers of a torch DataLoader end some seconds after their program was killed (SIGKILL): each looks every five
#   seconds whether its parent is still the one it began with (ManagerWatchdog, torch/utils/data/_utils/worker.py).
# What happens: that holds for "fork" and "spawn". With "forkserver", which is the default of Python 3.14, a worker's
#   parent is the server of forks. A worker holds the writing end of the pipe whose end tells the server to end
#   (multiprocessing/forkserver.py: _forkserver_alive_fd is handed to each child). So the server lives as long as its
#   workers do, and they as long as the server: all wait for ever, with torch in memory.
# Instead: in worker_init_fn, start a daemon thread that calls multiprocessing.parent_process().join() and then
#   os._exit(1). parent_process() is the program, also behind a fork server.
# Version: torch 2.13.0 with CPython 3.11.7; torch 2.14.1 with CPython 3.14.8, where nothing needs to be named. Linux.
# Needs pip. Fails if the behaviour changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/program.py" <<'PROGRAM'
import os, signal, sys
from torch.utils.data import DataLoader, Dataset

class Telling(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return os.getpid()

if __name__ == "__main__":
    batches = iter(DataLoader(Telling(), 1, num_workers=2, multiprocessing_context=sys.argv[1]))
    print(next(batches).item(), next(batches).item(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
PROGRAM
cat >"$folder/look.py" <<'LOOK'
import os, signal, subprocess, sys, time
from importlib.metadata import version
from pathlib import Path

print("python", sys.version.split()[0], "torch", version("torch"))
left = {}
for how in ("fork", "spawn", "forkserver"):
    with open("pids", "w") as told:
        subprocess.run([sys.executable, "program.py", how], stdout=told, stderr=subprocess.DEVNULL)
    workers = [int(pid) for pid in Path("pids").read_text().split()]
    deadline = time.monotonic() + 20
    alive = workers
    while alive and time.monotonic() < deadline:
        time.sleep(0.2)
        alive = [pid for pid in workers if Path(f"/proc/{pid}/exe").exists()]
    left[how] = len(alive)
    print(f"{how}: {left[how]} of {len(workers)} workers are alive 20 s after their program was killed")
    for pid in alive:
        os.kill(pid, signal.SIGTERM)
sys.exit(0 if left == {"fork": 0, "spawn": 0, "forkserver": 2} else "the behaviour has changed")
LOOK
cd "$folder"
venv/bin/python look.py
