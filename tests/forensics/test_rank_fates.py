"""`why rank`: which rank died, hung, differed or was slow."""

from __future__ import annotations

import pytest

from journal.reader import Reader
from tests.forensics.differences.written import events_of_a_run, step_at, write
from tolariad.cli.rank_words import fate_lines
from tolariad.core import messages as m
from tolariad.forensics.rank_fates import fates_of
from tolariad.forensics.why import NoAnswer, happened, why

TIMES = m.BudgetsMeasured(
    epoch=1,
    tallies=(),
    ranks=tuple(m.RankTimes(rank=n, pid=9 + n, compute_s=1.0 + n, wait_s=1.0 - n, steps=10) for n in (0, 1)),
)
DIFFER = "step 17: the gradient norm of rank 0 is 1.5, and that of rank 1 is 2.5, so the ranks train different models."


def died(incarnation=1, reason=m.DeathReason.SIGNAL, **more):
    return m.TrainerDied(incarnation=incarnation, reason=reason, step=12, signal="SIGKILL", **more)


def raised(incarnation, kind, text):
    told = {"kind": kind, "text": text, "traceback": f"Traceback\n{kind}: {text}"}
    return m.ExceptionRaised(incarnation=incarnation, step=16, **told)


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    return events_of_a_run(tmp_path_factory.mktemp("made") / "j")


@pytest.fixture
def told(tmp_path, steps):
    """Return a function: the journal of a run in which these events came after step 12."""

    def of(*events):
        at = step_at(steps, 12) + 1
        return Reader(write(tmp_path / "journal", [*steps[:at], *events, *steps[at:]]))

    return of


def test_the_rank_that_died_is_explained_with_the_times_of_all(told):
    """The event is its death; a death before it is told too."""
    with told(TIMES, died(rank=1), m.TrainerHung(incarnation=2, activity="stopped", silent_s=5, limit_s=5)) as reader:
        answer = why(reader, "rank")

    assert (answer.event.fields["type"], answer.timed.fields["type"]) == ("TrainerHung", "BudgetsMeasured")
    assert [(one.rank, one.did, one.step) for one in answer.fates] == [(1, "died", 12), (0, "hung", None)]
    first, second = fate_lines(answer.fates)
    assert first == f"rank 0: hung (event {answer.event.seq})"
    assert second.startswith("rank 1: died after step 12 (event ")


@pytest.mark.parametrize(
    ("kind", "text", "rank", "did"),
    [
        ("tolariad.trainer.ranks.group.RanksDiffer", DIFFER, 1, "differed from rank 0"),
        ("tolariad.trainer.ranks.group.RanksDiffer", DIFFER.replace("rank 1 ", "rank 11 "), 11, "differed from rank 0"),
        ("tolariad.library.crew.RankLost", "rank 2 (process 77) was ended by SIGKILL", 2, "died"),
    ],
)
def test_an_exception_names_the_rank(told, kind, text, rank, did):
    """The death that follows from it is not counted a second time."""
    with told(raised(3, kind, text), died(3, m.DeathReason.EXCEPTION)) as reader:
        answer = why(reader, "rank")

    assert [(one.rank, one.did, one.step) for one in answer.fates] == [(rank, did, 16)]
    assert answer.event.fields["type"] == "ExceptionRaised"


def test_an_exception_of_another_rank_is_told_by_its_beginning(told):
    """A program's rank 0 records the errors of others so. Rank 0's own may speak of a rank as well."""
    other = m.ExceptionRaised(incarnation=1, step=3, kind="ValueError", traceback="Rank 3: Traceback\nValueError: no")
    own = m.ExceptionRaised(
        incarnation=2, step=4, kind="ValueError", traceback="Traceback\nValueError: rank 7", text=""
    )
    with told(other, own) as reader:
        fates = fates_of(reader, None)

    assert [(one.rank, one.did) for one in fates.troubles] == [(3, "raised an exception"), (0, "raised an exception")]


def test_times_alone_are_an_answer(told):
    """Nothing happened to a rank: who is waited for is told all the same."""
    with told(TIMES) as reader:
        answer = why(reader, "rank")
        listed = happened(reader)

    assert (answer.event, answer.fates) == (answer.timed, ())
    assert listed["rank"].fields["type"] == "BudgetsMeasured"


def test_a_run_of_one_process_has_no_ranks(told):
    """Its trainer may have died: that is another topic, which the answer names."""
    with told(died(), died(2, m.DeathReason.WITH_DAEMON)) as reader:
        with pytest.raises(NoAnswer, match=r"had no rank that died.* It has an answer for: .*death"):
            why(reader, "rank")
        assert "rank" not in happened(reader)


def test_an_answer_as_of_then_knows_nothing_later(told):
    """Up to an event, as any topic."""
    with told(TIMES, died(rank=1)) as reader:
        last = why(reader, "rank").event.seq
        then = why(reader, "rank", until_seq=last - 1)

    assert (then.event.fields["type"], then.fates) == ("BudgetsMeasured", ())
