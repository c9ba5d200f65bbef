"""`--second-look N`: run the failed tests again, alone, if they are at most N. The session passes if all of them do.

Only continuous integration asks for it. Four tests at a time start, kill and wait for processes there on two cores, and
one of thousands may lose a race that no person's run loses. The first failure stays in the output, for somebody to mend
(docs/decisions/0109).
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import own_place


def add_option(parser: pytest.Parser) -> None:
    """Add the option. 0: a test that failed once has failed."""
    said = "run failed tests again, alone, if they are at most N"
    parser.addoption("--second-look", type=int, default=0, metavar="N", help=said)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int):
    """Look again after the first failures were printed in full."""
    result = yield
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or exitstatus != pytest.ExitCode.TESTS_FAILED:
        return result
    failed = list(dict.fromkeys(one.nodeid for kind in ("failed", "error") for one in reporter.stats.get(kind, ())))
    if 0 < len(failed) <= session.config.option.second_look:
        reporter.write_line(f"SECOND LOOK at {len(failed)} failed, alone: {', '.join(failed)}", red=True)
        session.exitstatus = _again(failed, session.config)
    return result


def _again(failed: list[str], config: pytest.Config) -> int:
    """Run these tests one after the other in a session of its own. Return its exit status."""
    sys.stdout.flush()
    root = config.rootpath
    place = ["-c", str(config.inipath), "--rootdir", str(root), "-p", "no:cacheprovider"]
    tests = [str(root / one) for one in failed]
    command = [sys.executable, "-m", "pytest", *place, "-n", "1", "--second-look", "0", *tests]
    # Not from the checkout, where `runs` may be the user's.
    return subprocess.run(command, cwd=own_place.session() / "work", check=False).returncode
