"""Scripts of the kind people have are killed twice, and end with the bits of a run that was never killed."""

from __future__ import annotations

import pytest

from tests.everyday.killed import (
    STEPS,
    STEPS_MOST,
    Program,
    plan_of,
    result_of,
    saved_in,
)
from tests.everyday.scripts import DAEMON, HERE, KINDS, LOOP, PLAIN, files_of

_EACH_EPOCH = '"checkpoint_interval_epochs": 1'


ROUNDS = [0, *(pytest.param(number, marks=pytest.mark.torture) for number in range(1, 10))]


@pytest.mark.sample(3)
@pytest.mark.parametrize("turn", ROUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_of_the_daemon_killed_twice_ends_with_the_same_bits(tmp_path, template, seed, kind, turn):
    """Weights, optimizer, generators, the task's own state; the loss, norm and rate of every step."""
    found = {}
    for name, plan in (("calm", []), ("killed", plan_of(kind, "daemon", seed + turn))):
        folder = tmp_path / name
        arguments = (
            "run",
            str(DAEMON / f"{kind}.yaml"),
            "--dir",
            str(folder / "run"),
            "--set",
            "checkpoint.min_gap_s=0",
        )
        Program(folder, template, "tolariad", *arguments).carry_out(plan)
        found[name] = result_of(folder, folder / "run", len(plan))
    assert len(found["calm"].end.steps) == STEPS.get(kind, STEPS_MOST)
    # At its start, at its end, and at epochs: not at one at which the checkpoint before is still being written.
    assert found["calm"].checkpoints > 2
    assert {"model", "optimizer", "state"} <= {name[: name.find("-")] for name in found["calm"].end.files}
    assert found["killed"].end == found["calm"].end


@pytest.mark.sample(3)
@pytest.mark.parametrize("turn", ROUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_killed_twice_ends_with_the_same_bits_as_the_plain_script(tmp_path, template, seed, kind, turn):
    """As above, and what the script keeps and saves. The plain script has the run's order of batches."""
    found = {}
    for name, plan in (("calm", []), ("killed", plan_of(kind, "loop", seed + turn))):
        folder = tmp_path / name
        program = Program(folder, template, str(folder / f"{kind}.py"))
        for script in files_of(LOOP, kind):
            # Epochs of milliseconds would have no checkpoints.
            text = script.read_text(encoding="utf-8").replace(
                _EACH_EPOCH, f'{_EACH_EPOCH}, "checkpoint": {{"min_gap_s": 0}}'
            )
            (folder / script.name).write_text(text, encoding="utf-8")
        program.carry_out(plan)
        found[name] = result_of(folder, folder / "runs" / kind, len(plan))
    plain = tmp_path / "plain"
    Program(plain, template, str(HERE / "in_order.py"), str(PLAIN / f"{kind}.py")).carry_out()
    assert len(found["calm"].end.steps) == STEPS.get(kind, STEPS_MOST)
    # At its start, at its end, and at epochs: not at one at which the checkpoint before is still being written.
    assert found["calm"].checkpoints > 2
    assert found["killed"].end == found["calm"].end
    assert found["calm"].end.weights == saved_in(plain) != {}
