"""Scripts of the kind people have are killed twice, and end with the bits of a run that was never killed."""

from __future__ import annotations

import pytest

from tests.everyday.killed import DAEMON, KINDS, STEPS, STEPS_MOST, Program, plan_of, result_of


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
