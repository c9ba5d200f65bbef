"""Prometheus's own programs read the metrics, the alert rules and the expressions of the dashboard."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.control.fakes import Recorder
from tests.core.simulate import World, until
from tests.outside.programs import outside
from tests.outside.servers import prometheus, queried
from tests.waiting import within
from tolariad.control.replies import RanksStatus, RankStatus
from tolariad.control.reply_tables import RateGroup
from tolariad.daemon.gpu_figures import GpuFigures
from tolariad.daemon.metrics import EarlierTotals, MetricsServer
from tolariad.daemon.metrics_page import Facts, families
from tolariad.telemetry.exposition import text
from tolariad.telemetry.totals import Totals

pytestmark = pytest.mark.outside
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "prometheus"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.fixture
def facts(tmp_path):
    recorder = Recorder(tmp_path / "run" / "journal")
    recorder.begin_run(epochs=3)
    for _ in range(15):
        recorder.step()
    group = RateGroup(name="default", policy="frozen", base=0.1, now=0.1, next=0.1, waiting=0)
    rates = replace(recorder.rates(), groups=(group,))
    # What only a run that trains has.
    status = recorder.status()
    rank = RankStatus(rank=0, pid=9, process="running", compute_s=0.25, wait_s=0.5, batch=None)
    ranks = RanksStatus(ranks=(rank,), slowest=None, share=None, batch=None)
    status = replace(status, ranks=ranks, steps_per_s=10.0, eta_s=2.0, journal=replace(status.journal, write_age_s=0.0))
    gpu = GpuFigures(device="cuda:0", used=5.0, total=9.0, load=0.5, celsius=50.0)
    known = {"totals": Totals().plus(Totals()), "memory": 5, "disk_free": 7, "disk_floor": 3, "gpu": gpu}
    yield Facts(status=status, rates=rates, **known)
    recorder.journal.close()


def ran(*command, given=None):
    return subprocess.run(command, input=given, cwd="/", capture_output=True, text=True, check=False)


def test_promtool_complains_of_exactly_the_two_old_names(facts):
    """The names of source 003 stay; each of the two has a twin."""
    found = ran(outside("promtool"), "check", "metrics", given=text(families(facts), {"run": "r"}))
    said = sorted((found.stdout + found.stderr).splitlines())

    assert [line.split()[0] for line in said] == ["tolaria_memory_usage_gb", "tolaria_rollback_duration_ms"]
    assert all("abbreviated units" in line for line in said)


def test_the_alert_rules_are_valid_and_fire_as_their_tests_say():
    """One test for each rule; healthy and paused runs raise none."""
    promtool = outside("promtool")
    assert ran(promtool, "check", "rules", str(FOLDER / "alerts.yml")).returncode == 0
    tested = ran(promtool, "test", "rules", str(FOLDER / "alerts_test.yml"))
    assert tested.returncode == 0, tested.stdout
    names = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    assert set(re.findall(r"alertname: (\w+)", (FOLDER / "alerts_test.yml").read_text())) == set(names)


def test_every_expression_of_the_dashboard_is_valid_and_of_a_metric_that_there_is(facts, tmp_path):
    """As a recording rule; every panel has its place, unit and variable data source."""
    rules = [{"record": f"test:{n}", "expr": one.replace("$run", ".*")} for n, one in enumerate(EXPRESSIONS)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = ran(outside("promtool"), "check", "rules", str(tmp_path / "rules.yml"))
    assert checked.returncode == 0, checked.stderr
    there = {one.name for one in families(facts)}
    used = {
        re.sub(r"_(bucket|sum|count)$", "", name) for one in EXPRESSIONS for name in re.findall(r"tolaria_\w+", one)
    }

    assert used - there == set()
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["gridPos"].keys() == {"h", "w", "x", "y"}
        assert panel["datasource"]["uid"] == "${datasource}"


async def test_a_real_prometheus_scrapes_the_port_and_answers_every_expression(facts, tmp_path):
    """Each of the dashboard's, with a shorter time to look back; an epoch ends between two scrapes."""
    server = MetricsServer(tmp_path / "run", lambda: facts, EarlierTotals(tmp_path / "run" / "journal", 0))
    events = until(World(0), 10).events
    silent = {one: quote(one.replace("$run", ".*").replace("30m", "1m")) for one in EXPRESSIONS}

    def answered(url):
        for event in events:
            server.adding.add(event)
        for one in [one for one, query in silent.items() if queried(url, query)]:
            del silent[one]
        return not silent

    await server.begin("127.0.0.1:0")
    try:
        with prometheus(tmp_path, f"127.0.0.1:{server.ports[0]}") as url:
            assert await asyncio.to_thread(within, 120.0, lambda: answered(url)), silent
    finally:
        await server.close()
