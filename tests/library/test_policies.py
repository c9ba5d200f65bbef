"""The policies in real runs: through deaths and rollbacks to the bit, and a function's source is the run's."""

from __future__ import annotations

import pytest

from journal import Reader
from tests.library.small import CONFIG, EPOCHS, STEPS_PER_EPOCH, bits, network, train
from tests.recorded import Stop, dies_at, events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.group import rate_of
from tolariad.daemon.request import StartRefused
from tolariad.forensics.moment import state_at
from tolariad.trainer.errors import SetupRefused

SOURCE = "import math\ndef f(step, total_steps): return math.sqrt(1 - step / total_steps)\n"
STEPS = EPOCHS * STEPS_PER_EPOCH


@pytest.fixture
def run(tmp_path):
    """Train under a policy, in a new folder or one that goes on. Return the bits of the weights, and the events."""
    (tmp_path / "sched.py").write_text(SOURCE)

    def _run(folder, policy, hook=None, **given):
        policy = str(tmp_path / policy) if ":" in policy else policy
        rates = {"base_lr": 0.01, "policy": policy, "num_cycles": 3, "power": 2.0}
        config = {"tolaria": {**CONFIG["tolaria"], "learning_rate": rates}}
        model = network()
        train(tmp_path / folder, hook, model=model, tolaria=Tolaria(config, run_dir=tmp_path / folder, **given))
        return bits(model), events_of(tmp_path / folder)

    return _run


def rates(events):
    return {one.step: (one.lr, one.rates) for one in of(events, m.StepCompleted)}


@pytest.mark.sample(2)
@pytest.mark.parametrize("policy", ["onecycle", "polynomial", "inverse_sqrt", "cosine_restarts", "sched.py:f"])
def test_a_run_that_dies_goes_on_to_the_bit_under_every_policy(run, tmp_path, policy):
    """The recorder computes each step's rates from the journal, and finds those of the trainer."""
    calm, whole = run("calm", policy)
    with pytest.raises(Stop):
        run("hurt", policy, dies_at(13))
    resumed, events = run("hurt", policy)

    assert resumed == calm
    assert rates(events) == rates(whole)
    assert len(set(rates(events).values())) > STEPS // 2
    assert [(one.compared > 0, one.first_difference) for one in of(events, m.RerunFinished)] == [(True, None)]
    assert not of(events, m.LrViolationDetected)


def test_a_function_is_in_the_journal_with_its_hash_and_every_value(run):
    """Its first update has the function's first value: nothing warms up before it."""
    _, events = run("run", "sched.py:f")
    (registered,) = of(events, m.LrGroupsRegistered)
    table = registered.groups[0].schedule.function

    assert (table.name, table.steps, len(table.hash)) == ("sched.py:f", STEPS, 64)
    assert rates(events)[1][0] == 0.01


def test_another_source_is_refused_on_resume_with_key_and_hashes(run, tmp_path):
    """Unless the change is accepted, which is an event; the new values then stand in the journal."""
    with pytest.raises(Stop):
        run("run", "sched.py:f", dies_at(13))
    before = events_of(tmp_path / "run")
    (tmp_path / "sched.py").write_text(SOURCE.replace("sqrt", "cos"))
    with pytest.raises(
        StartRefused, match=r"learning_rate\.policy: .*its hash was \w{16} and is \w{16}\n.*accept_config=True"
    ):
        run("run", "sched.py:f")
    assert events_of(tmp_path / "run") == before

    _, events = run("run", "sched.py:f", accept_config=True)
    assert [one.keys for one in of(events, m.ConfigChanged)] == [("learning_rate.policy",)]
    first, second = (one.groups[0].schedule.function for one in of(events, m.LrGroupsRegistered))
    assert first.hash != second.hash
    assert not of(events, m.LrViolationDetected)


def test_a_function_that_is_no_schedule_leaves_no_run(run, tmp_path):
    """Refused when the run is built, with the step."""
    (tmp_path / "wrong.py").write_text("def f(step, total_steps): return 5 - step\n")
    with pytest.raises(SetupRefused, match=r"at step 6 it gives -1\.0"):
        run("run", "wrong.py:f")
    with pytest.raises(StartRefused, match=r"nowhere\.py cannot be read"):
        run("other", "nowhere.py:f")


def test_a_journal_with_a_function_is_read_without_its_source(run, tmp_path):
    """A replay needs the journal only: the state has the rate of every step."""
    _, events = run("run", "sched.py:f")
    (tmp_path / "sched.py").unlink()
    with Reader(tmp_path / "run" / "journal") as reader:
        (group,) = state_at(reader).state.rates.groups

    assert {step: rate_of(group, step) for step in range(1, STEPS + 1)} == {
        step: rate for step, (rate, _) in rates(events).items()
    }


def test_a_warmup_that_nobody_sets_fits_the_epochs_of_the_call(tmp_path):
    """`train` names the epochs, after the configuration was read: the warm-up is one of its three, not ten."""
    silent = {"tolaria": {key: value for key, value in CONFIG["tolaria"].items() if key != "learning_rate"}}
    train(tmp_path / "run", tolaria=Tolaria(silent, run_dir=tmp_path / "run"))
    (registered,) = of(events_of(tmp_path / "run"), m.LrGroupsRegistered)

    assert registered.groups[0].schedule.warmup_steps == STEPS_PER_EPOCH
