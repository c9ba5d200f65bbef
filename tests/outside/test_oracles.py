"""Libraries of the extra `oracle`: what they wrote can be read back without a server or an account."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.outside
# Each prints the values of a metric that it has written and read; a process of its own ends its threads.
MLFLOW = """
import json, mlflow
mlflow.set_tracking_uri("sqlite:///runs.db")
with mlflow.start_run() as run:
    for step, value in enumerate((3.0, 2.0, 1.0)):
        mlflow.log_metric("loss", value, step)
found = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
print(json.dumps([one.value for one in found]))
"""
# wandb 0.31 has no reader of its file any more. It is a log of LevelDB behind seven bytes: blocks of 32 KiB, and pieces
# of records with sum, length and kind (1 whole, 2 first, 3 middle, 4 last).
WANDB = """
import json, os, glob, struct
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
import wandb
with wandb.init(project="tolaria", dir=".") as run:
    for value in (3.0, 2.0, 1.0):
        run.log({"loss": value})
from wandb.proto import wandb_internal_pb2 as pb
data = open(glob.glob("wandb/offline-run-*/*.wandb")[0], "rb").read()
assert data[:4] == b":W&B"
found, at, whole = [], 7, b""
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, length, kind = struct.unpack_from("<IHB", data, at)
    whole += data[at + 7 : at + 7 + length]
    at += 7 + length
    if kind in (1, 4):
        record, whole = pb.Record.FromString(whole), b""
        found += [json.loads(one.value_json) for one in record.history.item if "loss" in (one.key, *one.nested_key)]
print(json.dumps(found))
"""
TENSORBOARD = """
import json
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter("events") as writer:
    for step, value in enumerate((3.0, 2.0, 1.0)):
        writer.add_scalar("loss", value, step)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator("events").Reload().Scalars("loss")
print(json.dumps([one.value for one in found]))
"""


@pytest.mark.parametrize(
    ("name", "code"),
    [("mlflow", MLFLOW), ("wandb", WANDB), ("tensorboard", TENSORBOARD)],
    ids=("mlflow", "wandb", "tensorboard"),
)
def test_a_metric_is_read_back(name, code, tmp_path):
    """Three values in their order."""
    if find_spec(name) is None:
        pytest.skip(f"{name} (extra `oracle`) is not installed")
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == [3.0, 2.0, 1.0]
