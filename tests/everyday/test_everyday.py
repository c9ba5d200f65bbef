"""Scripts of the kind people have are killed twice, and end with the bits of a run that was never killed."""

from __future__ import annotations

import shutil

import pytest

from tests.everyday.killed import (
    STEPS,
    STEPS_MOST,
    Program,
    plan_of,
    result_of,
    saved_in,
)
from tests.everyday.scripts import DAEMON, HERE, KINDS, LOOP, PLAIN


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_of_the_daemon_killed_twice_ends_with_the_same_bits(tmp_path, template, seed, kind):
    """Weights, optimizer, generators, the task's own state; the loss, norm and rate of every step."""
    found = {}
    for name, plan in (("calm", []), ("killed", plan_of(kind, "daemon", seed))):
        folder = tmp_path / name
        arguments = ("run", str(DAEMON / f"{kind}.yaml"), "--dir", str(folder / "run"))
        Program(folder, template, "tolariad", *arguments).carry_out(plan)
        found[name] = result_of(folder, folder / "run", len(plan))
    assert len(found["calm"].steps) == STEPS.get(kind, STEPS_MOST)
    assert {"model", "optimizer", "state"} <= {name[: name.find("-")] for name in found["calm"].files}
    assert found["killed"] == found["calm"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_killed_twice_ends_with_the_same_bits_as_the_plain_script(tmp_path, template, seed, kind):
    """As above, and what the script keeps and saves. The plain script has the run's order of batches."""
    found = {}
    for name, plan in (("calm", []), ("killed", plan_of(kind, "loop", seed))):
        folder = tmp_path / name
        program = Program(folder, template, str(folder / f"{kind}.py"))
        for script in (f"{kind}.py", "rates.py"):
            shutil.copy(LOOP / script, folder)
        program.carry_out(plan)
        found[name] = result_of(folder, folder / "runs" / kind, len(plan))
    plain = tmp_path / "plain"
    Program(plain, template, str(HERE / "in_order.py"), str(PLAIN / f"{kind}.py")).carry_out()
    assert len(found["calm"].steps) == STEPS.get(kind, STEPS_MOST)
    assert found["killed"] == found["calm"]
    assert found["calm"].weights == saved_in(plain) != {}
