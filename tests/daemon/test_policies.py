"""Warm-ups that nobody set, and sources of rate functions, at the starts of a daemon."""

from __future__ import annotations

from tests.daemon.harness import SETS, of_type
from tests.recorded import events_of
from tolariad.core import messages as m
from tolariad.core.calc.settings.rules import read_resolved


def settings_of(run_dir):
    return read_resolved(of_type(run_dir, m.RunStarted)[0].config.encode())


def test_only_a_warmup_that_somebody_set_is_said_not_to_fit(start, run_dir, tmp_path):
    """Two epochs and nothing else: no word of a warm-up. Set to ten, it is said and shortened."""
    file = tmp_path / "run.yaml"
    file.write_text("tolaria: {task: 'own.module:Task', epochs: 2}")
    silent = start(config=str(file))
    assert silent.wait() == 0, silent.stderr
    assert "warm-up" not in silent.stderr
    assert settings_of(run_dir).learning_rate.warmup_epochs == 1

    said = start(config=str(file), sets=[*SETS, "learning_rate.warmup_epochs=10"], run_dir=tmp_path / "other")
    assert said.wait() == 0, said.stderr
    assert "a warm-up of 10 epochs does not fit into a run of 2 epochs" in said.stderr


def test_a_complete_run_keeps_the_warmup_that_nobody_set(start, run_dir, tmp_path):
    """More epochs alone would give a longer one. The run goes on, and no other key changes."""
    file = tmp_path / "run.yaml"
    for epochs in (2, 12):
        file.write_text(f"tolaria: {{task: 'own.module:Task', epochs: {epochs}}}")
        daemon = start(config=str(file))
        assert daemon.wait() == 0, daemon.stderr

    (changed,) = of_type(run_dir, m.ConfigChanged)
    assert changed.keys == ("epochs",)
    assert read_resolved(changed.config.encode()).learning_rate.warmup_epochs == 1


def test_a_changed_source_of_a_policy_is_refused_until_it_is_accepted(start, run_dir, tmp_path):
    """With key and both hashes, whether the configuration is given again or not. Put back, the run goes on."""
    source, file = tmp_path / "sched.py", tmp_path / "run.yaml"
    source.write_text("def f(step, total_steps): return 1.0\n")
    file.write_text(
        "tolaria: {task: digits, epochs: 3, optimizer: {groups: [{match: '*.bias', policy: './sched.py:f'}]}}"
    )
    daemon = start(config=str(file), environ={"FAKE_TRAINER": "crawl@4"})
    daemon.until(lambda status: status["step"] >= 4)
    daemon.kill()
    before = events_of(run_dir)
    was = settings_of(run_dir).optimizer.groups[0].policy

    source.write_text("def f(step, total_steps): return 0.5\n")
    for given in ({"config": str(file)}, {}):
        refused = start(**given)
        assert refused.wait() == 78
        said = " ".join(refused.stderr.split())
        assert f"optimizer.groups[0].policy: {source} has changed" in said
        assert f"its hash was {was[-16:]} and is " in said
    assert events_of(run_dir) == before

    accepted = start(config=str(file), accept_config=True)
    assert accepted.wait() == 0, accepted.stderr
    assert [one.keys for one in of_type(run_dir, m.ConfigChanged)] == [("optimizer.groups[0].policy",)]
