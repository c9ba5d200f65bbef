"""MLflow: a run for each branch, in one experiment. It needs the package mlflow (extra `mlflow`).

The first branch is a run with the name of ours; a later one is a run below the one that it left, named after the step.
MLflow shows the value of the largest step of a metric, whatever came last: so an abandoned step may not share a run
with the step that took its place.

Promises: each step is stored once. A batch is sent with its position behind it, in a tag of the first branch's run. A
follower that was killed between the two sends that batch again; the rows are the same, and the store keeps them once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tolariad import run_files
from tolariad.core.calc.text.plain import safe
from tolariad.followers.mlflow_keys import key_of
from tolariad.followers.records import (
    About,
    Begun,
    Branch,
    BranchOf,
    Ended,
    Numbers,
    Record,
    Words,
    as_config,
    flattened,
)
from tolariad.followers.refused import FollowRefused

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_ID: Final = "tolaria.run_id"
BRANCH: Final = "tolaria.branch"
POSITION: Final = "tolaria.position"
_PHASE: Final = "tolaria.phase"
_PARENT: Final = "mlflow.parentRunId"
_NAME: Final = "mlflow.runName"
_NOTE: Final = "mlflow.note.content"
_METRICS_MAX: Final = 1000  # of one request
_PARAMS_MAX: Final = 100
_PARAM_CHARACTERS_MAX: Final = 500
_NOTE_CHARACTERS_MAX: Final = 5000
_STATUS: Final = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowOutput:
    """Writes records through MLflow's client. `position`: the last event that the store holds."""

    def __init__(self, uri: str, project: str, run_dir: Path, about: About, branch_of: BranchOf) -> None:
        """Find or make the experiment and the run. Raises FollowRefused."""
        self._about, self._branch_of = about, branch_of
        self._run_dir = run_dir
        self._client = _client(uri, run_dir)
        self._uri = uri
        self._project = project or "tolariad"
        self._experiment = self._experiment_id()
        self._runs: dict[int, str] = {}
        # Branches whose runs have an end there.
        self._over: set[int] = set()
        # When the last record came about: a run begins then, not when it is copied.
        self._wall_ms = 0
        self._metrics: dict[int, list[Any]] = {}
        found = self._known(0)
        self.position = int(found.data.tags.get(POSITION, 0)) if found is not None else 0

    @property
    def words(self) -> str:
        """Return where the output is."""
        return f"experiment {self._project} in {self._client.tracking_uri}"

    def put(self, record: Record) -> None:
        """Take the next record. Raises MlflowException."""
        self._wall_ms = record.wall // 1_000_000
        match record:
            case Numbers():
                self._measure(record)
            case Words():
                line = f"* event {record.seq}, step {record.step}: {record.text}"
                self._note(self._run(record.branch), record.seq, line)
            case Begun():
                self._begin(record)
            case Ended():
                self._end(record)

    def flush(self, seq: int) -> None:
        """Send what is held back, then note event `seq` as the position. Raises MlflowException."""
        if seq == self.position:
            return
        for branch in list(self._metrics):
            self._send(branch)
        self._client.set_tag(self._run(0), POSITION, str(seq))
        self.position = seq

    def close(self) -> None:
        """Nothing is held open."""

    def _measure(self, numbers: Numbers) -> None:
        from mlflow.entities import Metric

        held = self._metrics.setdefault(numbers.branch, [])
        held += [Metric(key_of(name), value, self._wall_ms, numbers.step) for name, value in numbers.values]
        if len(held) >= _METRICS_MAX:
            self._send(numbers.branch)

    def _send(self, branch: int) -> None:
        held = self._metrics.pop(branch, [])
        run = self._run(branch)
        if branch in self._over:
            # The run goes on after its end, or this was sent before the last kill.
            self._client.update_run(run, "RUNNING")
            self._over.discard(branch)
        for first in range(0, len(held), _METRICS_MAX):
            self._client.log_batch(run, metrics=held[first : first + _METRICS_MAX])

    def _begin(self, begun: Begun) -> None:
        run = self._run(begun.branch)
        if begun.branch:
            if begun.left in self._metrics:
                self._send(begun.left)
            # Of both, the steps after this one are given up.
            for branch in {begun.parent, begun.left}:
                self._client.set_tag(self._run(branch), "tolaria.left_after_step", str(begun.step))
            self._terminate(begun.left, "KILLED")
            return
        from mlflow.entities import Param

        flat = flattened(as_config(self._about.config)).items()
        params = [Param(key_of(name), value[:_PARAM_CHARACTERS_MAX]) for name, value in flat]
        for first in range(0, len(params), _PARAMS_MAX):
            self._client.log_batch(run, params=params[first : first + _PARAMS_MAX])

    def _end(self, ended: Ended) -> None:
        run = self._run(ended.branch)
        if ended.branch in self._metrics:
            self._send(ended.branch)
        for name, value in ended.summary.items():
            self._client.set_tag(run, key_of(f"summary.{name}"), str(value))
        self._client.set_tag(run, _PHASE, ended.phase)
        self._terminate(ended.branch, _STATUS.get(ended.phase, "FINISHED"))

    def _terminate(self, branch: int, status: str) -> None:
        self._client.set_terminated(self._run(branch), status, self._wall_ms)
        self._over.add(branch)

    def _note(self, run: str, seq: int, line: str) -> None:
        """Add a line to the run's description. A line that was sent before the last kill is there already."""
        text = self._client.get_run(run).data.tags.get(_NOTE, "")
        if any(one.startswith(f"* event {seq},") for one in text.split("\n")):
            return
        lines = [*text.split("\n"), safe(line)] if text else [safe(line)]
        while len("\n".join(lines)) > _NOTE_CHARACTERS_MAX:
            lines.pop(0)
        self._client.set_tag(run, _NOTE, "\n".join(lines))

    def _run(self, branch: int) -> str:
        """Return the id of a branch's run, which is made if there is none."""
        known = self._runs.get(branch)
        if known is None:
            found = self._known(branch)
            known = found.info.run_id if found is not None else self._made(self._branch_of(branch))
            if found is not None and found.info.status != "RUNNING":
                self._over.add(branch)
            self._runs[branch] = known
        return known

    def _made(self, branch: Branch) -> str:
        tags = {RUN_ID: self._about.run_id, BRANCH: str(branch.number), _NAME: self._name_of(branch)}
        if branch.number:
            tags[_PARENT] = self._run(branch.parent)
        found: str = self._client.create_run(self._experiment, self._wall_ms, tags).info.run_id
        return found

    def _name_of(self, branch: Branch) -> str:
        return self._about.name if branch.number == 0 else f"{self._about.name} {branch.title}"

    def _known(self, branch: int) -> Any | None:
        query = f"tags.`{RUN_ID}` = '{self._about.run_id}' and tags.`{BRANCH}` = '{branch}'"
        found = self._client.search_runs([self._experiment], query, max_results=1)
        return found[0] if found else None

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._project)
        if found is not None:
            return str(found.experiment_id)
        # Artifacts of a store in a file would go to a folder of where this process happens to run.
        files = (self._run_dir / "exports" / "mlflow-artifacts").resolve().as_uri()
        of_file = self._client.tracking_uri.startswith("sqlite:")
        return str(self._client.create_experiment(self._project, artifact_location=files if of_file else None))


def _client(uri: str, run_dir: Path) -> MlflowClient:
    """Return a client of the store at `uri`, of MLFLOW_TRACKING_URI, or of a file in the run's folder."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        what = f"the package mlflow is not installed ({error}): pip install 'tolariad[mlflow]'"
        raise FollowRefused(what) from error
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        run_files.make_folder(run_dir, "exports")
        uri = f"sqlite:///{(run_dir / 'exports' / 'mlflow.db').resolve()}"
    if uri.startswith("file:") or "://" not in uri:
        why = "MLflow refuses stores of files, which keep a repeated batch twice"
        raise FollowRefused(f"{uri!r} is a folder: {why}. Give sqlite:///PATH.db, or http://HOST:PORT of a server")
    return MlflowClient(tracking_uri=uri)
