"""Two and three ranks of a program train as one run: one step on all, and the same bits after every kill."""

from __future__ import annotations

import pytest

from tests.library.ranks.groups import EPOCHS, Kills, Program, start, until_done
from tests.recorded import of, sound
from tolariad.core import messages as m

STEPS = {2: 5, 3: 3}


@pytest.fixture(scope="module", params=[2, 3])
def calm(request, tmp_path_factory):
    """The number of ranks, and what the ranks of an undisturbed run end with."""
    folder = tmp_path_factory.mktemp("calm")
    return request.param, start(request.param, Program(folder / "run"), folder), folder / "run"


def test_all_ranks_make_the_same_run(calm):
    """One journal, one set of steps, and one model on all ranks, but for the statistics of its buffers."""
    count, found, run_dir = calm
    events = sound(run_dir)

    assert [one["phase"] for one in found] == ["completed"] * count
    assert {one["steps"] for one in found} == {EPOCHS * STEPS[count]}
    assert [one.step for one in of(events, m.StepCompleted)] == [*range(1, EPOCHS * STEPS[count] + 1)]
    assert len({one["bits"]["optimizer"] for one in found}) == 1
    assert len({one["bits"]["0.weight"] for one in found}) == 1
    assert len({one["bits"]["1.running_mean"] for one in found}) == count


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "kills",
    [
        *(["1 before 5"], ["1 after 1"], ["0 before 5"], ["0 after 4"], ["recorder before 4"], ["recorder after 6"]),
        *(["all before 6"], ["all after 3"], ["1 before 3", "0 after 6"], ["0 before 1"], ["1 before 1"]),
        ["1 after 4", "1 before 5", "recorder before 7"],
    ],
    ids=", ".join,
)
def test_a_group_of_which_somebody_is_killed_ends_with_the_same_bits(calm, tmp_path, kills):
    """Either rank, all of them, or the recorder: the group ends, and the next one makes the bits of the calm run."""
    count, undisturbed, _ = calm
    program = Kills(tmp_path, *kills).into(Program(tmp_path / "run"))
    found, starts = until_done(count, program, tmp_path)
    events = sound(tmp_path / "run")

    assert starts == 1 + len(kills)
    assert found == undisturbed
    assert not of(events, m.RerunDiverged)


@pytest.mark.torture
@pytest.mark.parametrize(
    "kills",
    [["1 before 4", "2 before 4"], ["0 before 4", "2 before 4"], ["recorder before 4", "1 before 4"]],
    ids=", ".join,
)
def test_two_that_are_killed_at_once_change_no_bit_of_three_ranks(tmp_path, kills):
    """Two of three ranks, or the recorder and a rank. If one is ended by the other's end first, it is killed later."""
    (tmp_path / "calm").mkdir()
    undisturbed = start(3, Program(tmp_path / "calm" / "run"), tmp_path / "calm")
    found, starts = until_done(3, Kills(tmp_path, *kills).into(Program(tmp_path / "run")), tmp_path)

    assert 2 <= starts <= 3
    assert found == undisturbed
    assert not list(tmp_path.glob("kill?"))
    assert not of(sound(tmp_path / "run"), m.RerunDiverged)
