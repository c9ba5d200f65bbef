"""The servers that tests of `make outside` use do what these tests need of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.outside.journald import journald
from tests.outside.servers import prometheus, queried, redis_server, rendered, web_pages
from tests.waiting import wait_for
from tolariad.telemetry.journald import message_id

pytestmark = pytest.mark.outside


def test_a_stream_of_redis_gives_back_the_bytes_in_their_order(tmp_path):
    """Any bytes, as a packet of leyline has them."""
    redis = pytest.importorskip("redis", reason="redis (extra `bus`) is not installed")
    with redis_server(tmp_path) as url:
        client = redis.Redis.from_url(url)
        sent = [bytes(range(256)), b"", b"\0" * 3]
        for one in sent:
            client.xadd("oona", {"packet": one})
        found = [fields[b"packet"] for _, fields in client.xrange("oona")]
        client.close()

    assert found == sent


def test_prometheus_scrapes_a_page(tmp_path):
    """A gauge is found by its name, with its value."""
    pages = {"/metrics": ("text/plain; version=0.0.4", "tolaria_step 42\n")}
    with web_pages(pages) as target, prometheus(tmp_path, target) as url:
        (found,) = wait_for(lambda: queried(url, "tolaria_step"), "the scraped gauge")

    assert found["value"][1] == "42"
    assert found["metric"]["instance"] == target


def test_chromium_shows_a_page_after_its_script_has_run(tmp_path):
    """The script's text is in the document."""
    text = "<p id=a></p><script>document.getElementById('a').textContent = 6 * 7</script>"
    with web_pages({"/": ("text/html", text)}) as address:
        shown = rendered(f"http://{address}/", tmp_path)

    assert '<p id="a">42</p>' in shown


def test_journald_keeps_what_the_daemon_says(tmp_path):
    """The sentence of a refused start is one entry, under the daemon's name."""
    command = (str(Path(sys.executable).with_name("tolariad")), "run", "--dir", str(tmp_path / "run"), str(tmp_path))
    with journald() as journal:
        code = journal.keep("tolariad", *command)
        entries = wait_for(lambda: journal.entries("tolariad"), "the daemon's sentence")

    assert code > 0
    assert str(tmp_path) in " ".join(entry["MESSAGE"] for entry in entries)


def test_journald_has_the_events_of_a_run_as_fields(tmp_path):
    """A run under journald: its end is one entry with the event, its number and an id; no line of progress."""
    command = (str(Path(sys.executable).with_name("tolariad")), "run", "--task", "digits", "--epochs", "1")
    with journald() as journal:
        # systemd says by this variable where the output leads; systemd-cat (252) does not.
        manager = ("bash", "-c", 'JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec "$@"', "manager")
        code = journal.keep("other", *manager, *command, "--dir", str(tmp_path / "run"))
        entries = wait_for(lambda: journal.entries("tolariad@run"), "the run's entries")
        lines = [entry["MESSAGE"] for entry in journal.entries("other")]

    assert code == 0
    (end,) = [entry for entry in entries if entry.get("TOLARIA_EVENT") == "RunCompleted"]
    assert (end["TOLARIA_RUN"], end["TOLARIA_STEP"], end["MESSAGE_ID"]) == ("run", "23", message_id("RunCompleted"))
    assert int(end["TOLARIA_SEQ"]) > 23
    assert not [line for line in lines if "steps/s" in line or line.startswith("{")]
