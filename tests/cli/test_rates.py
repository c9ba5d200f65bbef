"""`tolaria lr show`, `tolaria lr set` and `tolaria why RUN lr`."""

from __future__ import annotations

import pytest

from tests.cli.test_orders import in_background
from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.group import Group, rate_of
from tolariad.core.calc.learning_rate.schedule import LRPolicy, Schedule

BODY = Group("body", Schedule(policy=LRPolicy.LINEAR, base_lr=0.1, min_lr=0.0, total_steps=31))
BIAS = Group("*.bias", Schedule(policy=LRPolicy.FROZEN, base_lr=0.1))


@pytest.fixture
def rated(live_run):
    """A live run whose groups are known, at step 12."""
    live_run.do(live_run.recorder.record, m.LrGroupsRegistered(groups=(BODY, BIAS)))
    return live_run


def obey(served):
    """The trainer at its boundary: the order acts before step 13."""
    order = served.recorder.state.boundary.waiting[0]
    served.recorder.report(m.BoundaryOrderReport(order=order.cause.seq, applied_before_step=13))


def test_the_table_has_a_row_a_group(tolaria, rated):
    """Policy, base rate, the last and the next update's rate; the same as JSON."""
    said = tolaria("lr", "show", "--dir", rated.path.parent)
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[0] == ["group", "policy", "base", "now", "next", "last", "change"]
    assert lines[1] == ["body", "linear", "0.1", "0.0633333", "0.06", "-"]
    assert lines[2] == ["*.bias", "frozen", "0.1", "0", "0", "-"]

    table = tolaria("lr", "show", "--dir", rated.path.parent, "--json").json
    assert table["step"] == 12
    assert [group["name"] for group in table["groups"]] == ["body", "*.bias"]


def test_an_order_waits_until_it_acts_and_names_the_step(tolaria, rated):
    """The command prints recorded, done, and from which step on; table and journal then have actor and reason."""
    trainer = in_background(rated, lambda state: state.boundary.waiting, lambda: obey(rated))
    said = tolaria("lr", "set", "body", "0.01", "--dir", rated.path.parent, "--reason", "it oscillates")
    trainer.join()

    assert said.code == 0
    assert "lr set: recorded as event" in said.out
    assert "from step 13 on" in said.out
    shown = tolaria("lr", "show", "--dir", rated.path.parent).out
    assert "0.01 from step 13 by" in shown
    assert "it oscillates" in shown
    table = tolaria("lr", "show", "--dir", rated.path.parent, "--json").json
    assert (table["groups"][0]["now"], table["groups"][0]["next"]) == (pytest.approx(0.1 * 19 / 30), 0.01)


def test_why_tells_order_actor_reason_and_the_first_step_that_was_verified(tolaria, rated):
    """`--at` works: before the order nothing had changed a rate."""
    trainer = in_background(rated, lambda state: state.boundary.waiting, lambda: obey(rated))
    tolaria("lr", "set", "body", "0.01", "--dir", rated.path.parent, "--reason", "it oscillates")
    trainer.join()
    rated.do(rated.recorder.step)

    told = tolaria("why", rated.path.parent, "lr", "--json").json
    assert (told["event"]["type"], told["event"]["applied_before_step"]) == ("OrderActed", 13)
    (order,) = told["causes"]
    assert (order["type"], order["order"]["type"], order["order"]["value"]) == ("OrderGiven", "SetRate", 0.01)
    assert order["actor"]["reason"] == "it oscillates"
    assert order["time"]
    (first,) = told["consequences"]
    assert (first["type"], first["step"], first["verified"]) == ("StepCompleted", 13, {"group": "body", "rate": 0.01})
    for name, number in (("SetRate", 2), ("OrderActed:SetRate", 1), ("OrderGiven", 1), ("OrderActed:MoveSeed", 0)):
        assert len(tolaria("events", rated.path.parent, "-t", name, "--json").out.splitlines()) == number
    assert "OrderActed:SetRate" in tolaria("events", rated.path.parent, "-t", "SetRate").out
    words = tolaria("why", rated.path.parent, "lr").out
    assert "it oscillates" in words
    assert "Verified: body at 0.01." in words
    earlier = tolaria("why", rated.path.parent, "lr", "--at", "step:11")
    assert earlier.code == 1
    assert "by then no order and no plateau had changed a rate of this run" in earlier.err


def test_of_two_orders_at_one_boundary_the_first_was_never_used(tolaria, rated):
    """The table's `now` is still the last update's rate, and no step is reported with the first order's rate."""
    where = ("--dir", rated.path.parent)
    for value in ("0.03", "0.01"):
        trainer = in_background(rated, lambda state: state.boundary.waiting, lambda: obey(rated))
        tolaria("lr", "set", "body", value, *where, "--reason", value)
        trainer.join()
    used = tolaria("lr", "show", *where, "--json").json["groups"][0]
    assert (used["now"], used["next"]) == (pytest.approx(0.1 * 19 / 30), 0.01)

    rated.do(rated.recorder.step)
    second = tolaria("why", rated.path.parent, "lr", "--json").json
    first = tolaria("why", rated.path.parent, f"seq:{second['event']['seq'] - 2}", "--json").json
    assert [one["step"] for one in second["consequences"]] == [13]
    assert (first["event"]["order"]["type"], first["event"]["order"]["value"]) == ("SetRate", 0.03)
    assert first["consequences"] == []


def test_a_new_policy_is_ordered_by_its_name(tolaria, rated):
    """The table then shows it."""
    trainer = in_background(rated, lambda state: state.boundary.waiting, lambda: obey(rated))
    said = tolaria("lr", "set", "body", "0.05", "--policy", "onecycle", "--dir", rated.path.parent)
    trainer.join()

    assert said.code == 0, said.err
    assert tolaria("lr", "show", "--dir", rated.path.parent).out.splitlines()[1].split()[:2] == ["body", "onecycle"]


def test_a_function_is_tabulated_here_and_its_values_are_sent(tolaria, rated, tmp_path, monkeypatch):
    """Relative to the working folder. The order has the table, so neither daemon nor trainer sees the file."""
    (tmp_path / "sched.py").write_text("def rates(step, total_steps): return 1 - step / total_steps\n")
    monkeypatch.chdir(tmp_path)
    trainer = in_background(rated, lambda state: state.boundary.waiting, lambda: obey(rated))
    said = tolaria("lr", "set", "body", "0.05", "--policy", "./sched.py:rates", "--dir", rated.path.parent)
    trainer.join()

    assert said.code == 0, said.err
    group = rated.recorder.state.rates.group("body")
    assert (group.function.source, group.function.steps) == (str(tmp_path / "sched.py:rates"), 31)
    assert rate_of(group, 13) == 0.05
    assert rate_of(group, 31) == pytest.approx(0.05 * (1 / 31) / (19 / 31))
    assert "sched.py:rates" in tolaria("lr", "show", "--dir", rated.path.parent).out


@pytest.mark.parametrize(
    ("group", "policy", "code", "why"),
    [
        ("body", "nowhere.py:f", 2, "cannot be read"),
        ("body", "wrong.py:f", 2, "at step 3 it gives -1.0"),
        ("nobody", "wrong.py:f", 4, "there are body, *.bias"),
        ("*.bias", "right.py:f", 2, "needs the number of steps"),
    ],
)
def test_a_function_that_cannot_be_ordered_is_refused_here(
    tolaria, rated, tmp_path, monkeypatch, group, policy, code, why
):
    """Nothing is sent."""
    (tmp_path / "wrong.py").write_text("def f(step, total_steps): return -1 if step == 3 else 1\n")
    (tmp_path / "right.py").write_text("def f(step, total_steps): return 1\n")
    monkeypatch.chdir(tmp_path)
    said = tolaria("lr", "set", group, "0.05", "--policy", policy, "--dir", rated.path.parent)

    assert (said.code, why in " ".join(said.err.split())) == (code, True), said.err
    assert rated.recorder.state.boundary.waiting == ()


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        (("nobody", "0.1"), "NotFound", "there are body, *.bias"),
        (("body", "5"), "Refused", "at most 10-fold"),
        (("*.bias", "0.1"), "Refused", "--policy"),
        (("body", "0"), "Refused", "--policy frozen"),
    ],
)
def test_an_order_that_cannot_be_is_exit_4_with_the_reason(tolaria, rated, arguments, error, why):
    """Nothing is recorded."""
    said = tolaria("lr", "set", *arguments, "--dir", rated.path.parent)
    assert said.code == 4
    assert error in said.err
    assert why in said.err
    assert rated.recorder.state.boundary.waiting == ()


def test_words_that_are_no_order_are_exit_2(tolaria, rated):
    """Refused: a value that is not a finite number, and an unknown policy."""
    for value in ("nan", "inf", "-inf", "1e999"):
        said = tolaria("lr", "set", "body", "--dir", rated.path.parent, "--", value)
        assert (said.code, "finite number" in said.err) == (2, True), value
    assert tolaria("lr", "set", "body", "fast", "--dir", rated.path.parent).code == 2
    said = tolaria("lr", "set", "body", "0.1", "--policy", "square", "--dir", rated.path.parent)
    assert said.code == 2
    assert "host_cosine" in said.err


def test_a_run_without_a_daemon_shows_the_table_of_its_journal(tolaria, recorder, run_dir):
    """The rates are folded from the journal, as the status is."""
    recorder.record(m.LrGroupsRegistered(groups=(BODY,)))
    assert tolaria("lr", "show", "--dir", run_dir, "--json").json["groups"][0]["next"] == pytest.approx(0.06)
