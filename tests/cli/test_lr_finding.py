"""`tolariad lr-find`: the curve, the words under it, and the numbers for programs."""

from __future__ import annotations

import json
import math

import pytest

from tests.cli.stored import record
from tolariad.trainer.probes.messages import Sweep, SweepPoint, SweptGroup


def smoothed(n):
    """It falls at 1e-3, and explodes above 1."""
    return 2.0 - 1.5 / (1.0 + math.exp(40 - n)) + math.exp((n - 70) / 2)


POINTS = tuple(SweepPoint(10.0 ** (n / 10 - 7), 2.0, smoothed(n)) for n in range(75))
GROUPS = (SweptGroup("default", 3e-3, 1.0), SweptGroup("head", 1.5e-3, 0.5))
SWEEP = Sweep(
    points=POINTS, swept="default", groups=GROUPS, stopped="diverged", rng_seed=0, steepest=1e-3, tenth=2e-3
)  # fmt: skip


@pytest.fixture
def swept(answer):
    return answer(SWEEP)


def test_the_curve_and_what_follows_from_it_fit_80_columns(tolariad, swept):
    """Also on a pipe: the curve, the groups, why it stopped, and the option that sets the rate."""
    code, out, err = tolariad("lr-find", "--task", "digits", "--end", "5")
    lines = out.splitlines()

    assert (code, err) == (0, "")
    assert max(map(len, lines)) <= 80
    words = ["model", "swept", "with it", "stopped", "configured", "suggested", "", ""]
    assert [line[:15].strip() for line in lines[18:]] == words
    # The drawing ends within the rise; the sweep went to 2.51.
    assert "to 1.26: then it rises further" in lines[0]
    assert "head x 0.5" in out
    assert "the smoothed loss is above 4 times its best" in out
    assert lines[-1].strip() == "--set learning_rate.base_lr=0.001"
    assert (swept[0].start, swept[0].end, swept[0].steps, swept[0].stop_factor) == (1e-7, 5.0, 100, 4.0)
    assert swept[0].weights is None


def test_a_sweep_as_csv_and_as_json(tolariad, swept, run_dir):
    """Every digit of every point; with --dir the weights of the run's checkpoint."""
    record(run_dir)
    given = ("lr-find", "--task", "digits", "--dir", run_dir, "--no-stop")
    head, *rows = tolariad(*given, "--csv")[1].splitlines()
    as_json = json.loads(tolariad(*given, "--json")[1])

    assert head == "rate,loss,smoothed"
    assert [tuple(map(float, row.split(","))) for row in rows] == [(p.rate, p.loss, p.smoothed) for p in POINTS]
    assert (as_json["steepest"], as_json["stopped"], len(as_json["points"])) == (1e-3, "diverged", 75)
    assert as_json["model"] == f"c000002 of {run_dir}, step 10"
    assert {one.weights.id for one in swept} == {"c000002"}
    assert {one.stop_factor for one in swept} == {0.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give a configuration, --task, or a run by --run"),
        (("--task", "digits", "--checkpoint", "best"), "--checkpoint needs a run: name it by --run"),
        (("--task", "digits", "--start", "1", "--end", "1"), "--end must be above --start, which is 1"),
        (("--task", "digits", "--start", "0"), "0.0 is not in the range"),
        (("--task", "digits", "--steps", "3"), "3 is not in the range"),
    ],
)
def test_a_sweep_with_wrong_arguments_is_a_usage_error(tolariad, swept, arguments, says):
    """No process is started."""
    code, _, err = tolariad("lr-find", *arguments)

    assert (code, swept) == (2, [])
    assert says in err


def test_a_sweep_in_a_process_of_its_own(tolariad, forked_trials):
    """The built-in task: the loss falls somewhere between the ends, and the rate there is suggested."""
    code, out, err = tolariad("lr-find", "--task", "digits", "--json")
    found = json.loads(out)

    assert (code, err) == (0, "")
    assert found["points"][0]["rate"] == 1e-7
    assert 1e-3 < found["steepest"] < 0.1
    assert found["stopped"] == "diverged"
