#!/bin/sh
# Guess: torchrun --max-restarts gives the processes of each start a store of their own, so that nothing of the start
#   before is found there.
# What happens: one TCPStore of the agent serves all starts. A key that a process of the first start has set is there
#   in the second one, under the same name. The process groups of gloo meet through such keys (their addresses), so a
#   second start may read an address of a process that is gone; groups of three did not come back here. A comment in
#   torch/distributed/rendezvous.py says "We create a new TCPStore for every retry".
# Instead: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun: then each start has its own store.
# Version: torch 2.13.0 with CPython 3.11.7. Linux.
# Needs pip. Fails if the behaviour changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/look.py" <<'LOOK'
import os, sys
from datetime import timedelta
import torch
from torch.distributed import TCPStore

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
port = int(os.environ["MASTER_PORT"])
is_server = os.environ["TORCHELASTIC_USE_AGENT_STORE"] != "True"
store = TCPStore(os.environ["MASTER_ADDR"], port, 1, is_server, timedelta(seconds=20))
print("torch", torch.__version__, "start", attempt, "finds the key:", store.check(["left by start 0"]), flush=True)
if attempt == "0":
    store.set("left by start 0", "yes")
    sys.exit(3)  # an ordinary failure: torchrun starts the process again
LOOK
cd "$folder"
for apart in 0 1; do
  echo "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=$apart"
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=$apart
  venv/bin/torchrun --nproc-per-node 1 --max-restarts 1 look.py 2>log | tee "said-$apart"
done
grep -q "start 1 finds the key: True" said-0 || { echo "the behaviour has changed"; exit 1; }
grep -q "start 1 finds the key: False" said-1 || { echo "the behaviour has changed"; exit 1; }
