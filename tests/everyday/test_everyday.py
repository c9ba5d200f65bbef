"""Scripts of the kind people have are killed twice, and end with the bits of a run that was never killed."""

from __future__ import annotations

import pytest

from tests.everyday.killed import (
    KILLS,
    STEPS,
    STEPS_MOST,
    Program,
    Result,
    dense_plan_of,
    plan_of,
    result_of,
    saved_in,
)
from tests.everyday.scripts import DAEMON, DENSE, HERE, KINDS, LOOP, PLAIN, files_of

_EACH_EPOCH = '"checkpoint_interval_epochs": 1'
# Epochs of milliseconds would have no checkpoints. With the second a checkpoint begins as soon as one is committed.
_GAP, _INTERVAL = 0, 1e-6


ROUNDS = range(10)


def is_dense(kind: str, turn: int) -> bool:
    """Return whether the kills of this round come at dense checkpoints: every time, or every second time."""
    return kind in DENSE or turn % 2 == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("turn", ROUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_of_the_daemon_killed_twice_ends_with_the_same_bits(tmp_path, template, seed, kind, turn):
    """Weights, optimizer, generators, the task's own state; the loss, norm and rate of every step."""
    found, dense = {}, is_dense(kind, turn)
    settings = [f"checkpoint.min_gap_s={_GAP}", *([f"checkpoint.interval_s={_INTERVAL}"] if dense else [])]
    plan = (dense_plan_of if dense else plan_of)(kind, "daemon", seed + turn)
    for name, kills in (("calm", []), ("killed", plan)):
        folder = tmp_path / name
        arguments = ("run", str(DAEMON / f"{kind}.yaml"), "--dir", str(folder / "run"))
        given = [word for setting in settings for word in ("--set", setting)]
        Program(folder, template, "tolariad", *arguments, *given).carry_out(kills)
        found[name] = result_of(folder, folder / "run", len(kills))
    check(kind, found["calm"], found["killed"], dense)
    assert {"model", "optimizer", "state"} <= {name[: name.find("-")] for name in found["calm"].end.files}


@pytest.mark.sample(5)
@pytest.mark.parametrize("turn", ROUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_killed_twice_ends_with_the_same_bits_as_the_plain_script(tmp_path, template, seed, kind, turn):
    """As above, and what the script keeps and saves. The plain script has the run's order of batches."""
    found, dense = {}, is_dense(kind, turn)
    interval = f', "interval_s": {_INTERVAL}' if dense else ""
    plan = (dense_plan_of if dense else plan_of)(kind, "loop", seed + turn)
    for name, kills in (("calm", []), ("killed", plan)):
        folder = tmp_path / name
        program = Program(folder, template, str(folder / f"{kind}.py"))
        for script in files_of(LOOP, kind):
            text = script.read_text(encoding="utf-8").replace(
                _EACH_EPOCH, f'{_EACH_EPOCH}, "checkpoint": {{"min_gap_s": {_GAP}{interval}}}'
            )
            (folder / script.name).write_text(text, encoding="utf-8")
        program.carry_out(kills)
        found[name] = result_of(folder, folder / "runs" / kind, len(kills))
    plain = tmp_path / "plain"
    Program(plain, template, str(HERE / "in_order.py"), str(PLAIN / f"{kind}.py")).carry_out()
    check(kind, found["calm"], found["killed"], dense)
    assert found["calm"].end.weights == saved_in(plain) != {}


def check(kind: str, calm: Result, killed: Result, dense: bool) -> None:
    """Assert that both ended with the same bits, and that the kills came where they had to."""
    assert len(calm.end.steps) == STEPS.get(kind, STEPS_MOST)
    # At its start, at its end, and at epochs: not at one at which the checkpoint before is still being written.
    assert calm.checkpoints > 2
    assert killed.end == calm.end
    print(f"{kind}: {calm.checkpoints} and {killed.checkpoints} checkpoints, resumed from {killed.resumed}")
    assert len(killed.resumed) == KILLS
    if dense:
        assert 0 < killed.resumed[0] <= killed.resumed[1]
