"""The slow rank of a group is found and named: in the journal, in the status and by `why RUN slow`."""

from __future__ import annotations

import os
import time

import pytest

from tests.library.ranks.groups import Program, start
from tests.recorded import of, sound
from tolariad.cli.tolaria import main
from tolariad.core import messages as m

LATE_S = 0.2


def late(program, rank, step):
    """Rank 1 loads its data slowly."""
    if rank == 1:
        time.sleep(LATE_S)


def test_the_slow_rank_is_named(tmp_path, capsys):
    """Rank 1 takes longer in each step, and rank 0 waits for it. Every step was timed, those of two epochs apart."""
    program = Program(tmp_path / "run", samples=48, epochs=2)
    program.before = late
    found = start(2, program, tmp_path)
    told = [one.ranks for one in of(sound(tmp_path / "run"), m.BudgetsMeasured) if one.ranks]

    assert [one["phase"] for one in found] == ["completed"] * 2
    assert sum(ranks[0].steps for ranks in told) == 6
    for ranks in told:
        assert [(one.rank, one.batch) for one in ranks] == [(0, 8), (1, 8)]
        assert ranks[1].compute_s >= LATE_S * ranks[1].steps
        assert m.slowest_rank(ranks).rank == 1
        assert len({os.getpid(), *(one.pid for one in ranks)}) == 3
    for words, expected in (
        (("status",), "2, the others wait for rank 1 in "),
        (("status",), "batch 8 a rank, 16 in all"),
        (("why", "slow"), "rank 1 is the slowest: the others wait for it in "),
    ):
        with pytest.raises(SystemExit):
            main([words[0], str(tmp_path / "run"), *words[1:]])
        assert expected in capsys.readouterr().out
