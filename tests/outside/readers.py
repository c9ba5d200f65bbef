"""What a follower has written, as the programs show it with which people look: each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
found = EventMultiplexer(size_guidance={"scalars": 0, "tensors": 0}).AddRunsFromDirectory(sys.argv[1]).Reload()

def value_of(tensor):
    return tensor.string_val[0].decode() if tensor.string_val else tensor.float_val[0]

def run(name):
    tags = found.GetAccumulator(name).Tags()["tensors"]
    return {tag: [(one.step, value_of(one.tensor_proto)) for one in found.Tensors(name, tag)] for tag in tags}

print(json.dumps({name: run(name) for name in found.Runs()}))
"""
_MLFLOW = """
import json, sys, mlflow
client = mlflow.MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name(sys.argv[2])
runs = sorted(client.search_runs([experiment.experiment_id]), key=lambda one: int(one.data.tags["tolaria.branch"]))

def shown(run):
    info, data = run.info, run.data
    metrics = {name: [(one.step, one.value) for one in client.get_metric_history(info.run_id, name)]
               for name in data.metrics}
    return {"id": info.run_id, "name": info.run_name, "status": info.status, "metrics": metrics, "tags": data.tags,
            "params": data.params, "start": info.start_time, "end": info.end_time}

print(json.dumps([shown(run) for run in runs]))
"""
_CORE = "from wandb.util import get_core_path; print(get_core_path())"


def read_tensorboard(folder: Path) -> dict[str, dict[str, list[list[Any]]]]:
    """Return step and value of everything, by run and tag: from the multiplexer that its server reads with."""
    return json.loads(_printed("-c", _TENSORBOARD, str(folder)))


def read_mlflow(uri: str, experiment: str) -> list[dict[str, Any]]:
    """Return the runs of an experiment in the order of their branches, from a store, by its client."""
    return json.loads(_printed("-c", _MLFLOW, uri, experiment))


def read_wandb(folder: Path) -> list[dict[str, Any]]:
    """Return the offline runs in a folder by their start: name, config, rows; by what `wandb leet inspect` calls.

    A run whose writer was killed before its first record is left out.
    """
    core = _printed("-c", _CORE).strip()
    found = (_offline(core, path) for path in sorted(folder.glob("offline-run-*/*.wandb")))
    return [one for one in found if one is not None]


def _offline(core: str, path: Path) -> dict[str, Any] | None:
    inspect = (core, "leet", "inspect", "--no-observability", "--json", "-run-file", str(path), str(path.parents[1]))
    lines = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    if not records:
        return None
    (run,) = [one["run"] for one in records if one["type"] == "run"]
    summaries = [one["summary"].get("update", {}) for one in records if one["type"] == "summary"]
    return {
        "id": run["run_id"],
        "name": run["display_name"],
        "group": run["run_group"],
        "config": run["config"]["update"],
        "rows": [one["history"]["item"] for one in records if one["type"] == "history"],
        "summary": {name: value for one in summaries for name, value in one.items()},
    }


def _printed(*command: str) -> str:
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]
