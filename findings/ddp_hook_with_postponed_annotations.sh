#!/bin/sh
# Guess: DDP takes a communication hook that is annotated as the documentation shows it (bucket: dist.GradBucket,
#   returns torch.futures.Future[torch.Tensor]), wherever it is defined.
# What happens: in a module with `from __future__ import annotations` the same hook is refused: "ValueError:
#   Communication hook: bucket annotation should be dist.GradBucket." Annotations are text there, and DDP compares them
#   with the class itself (torch/nn/parallel/distributed.py: _check_comm_hook uses inspect.signature without
#   eval_str=True). The message asks for what stands there already. The same hook without any annotation is taken.
# Instead: register a function without annotations, such as `lambda state, bucket: hook(bucket)`.
# Version: torch 2.13.0 with CPython 3.11.7. Linux.
# Needs pip. Fails if the behaviour changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/plain.py" <<'PLAIN'
import torch
import torch.distributed as dist

def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
PLAIN
{ echo "from __future__ import annotations"; cat "$folder/plain.py"; } >"$folder/postponed.py"
cat >"$folder/look.py" <<'LOOK'
import os, sys, tempfile
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import plain, postponed

print("python", sys.version.split()[0], "torch", torch.__version__)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
with tempfile.TemporaryDirectory() as place:
    dist.init_process_group("gloo", store=dist.FileStore(f"{place}/store", 1), rank=0, world_size=1)
    found = {}
    hooks = {
        "annotated": plain.hook,
        "annotated, annotations postponed": postponed.hook,
        "postponed, wrapped": lambda state, bucket: postponed.hook(state, bucket),
    }
    for name, hook in hooks.items():
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        try:
            model.register_comm_hook(None, hook)
            model(torch.ones(1, 2)).sum().backward()
            found[name] = "taken"
        except ValueError as error:
            found[name] = str(error)
        print(f"{name}: {found[name]}")
    dist.destroy_process_group()
expected = ["taken", "Communication hook: bucket annotation should be dist.GradBucket.", "taken"]
sys.exit(0 if list(found.values()) == expected else "the behaviour has changed")
LOOK
cd "$folder"
venv/bin/python look.py
