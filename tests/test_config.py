"""Configuration files: the YAML that is allowed, the places that errors name, and `--set`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tolariad import config
from tolariad.config import load
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.core.calc.settings.rules import resolved_json
from tolariad.daemon.settings import policy_of


@pytest.fixture
def write(tmp_path):
    """Write a configuration file and return its path."""

    def _write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def message(source, sets=()) -> str:
    """Return what is said about a configuration that must be refused."""
    with pytest.raises(ConfigError) as caught:
        load(source, sets)
    return str(caught.value)


def test_a_warmup_that_nobody_sets_fits_the_epochs(write):
    """The silent configuration has the source documents' 10 of 100; a section without the key is silent too."""
    assert load({"tolaria": {}}).learning_rate.warmup_epochs == 10
    assert load({"tolaria": {"epochs": 5}}).learning_rate.warmup_epochs == 1
    assert load(write("tolaria:\n  epochs: 30\n  learning_rate:\n")).learning_rate.warmup_epochs == 3
    assert load({"tolaria": {"learning_rate": {"base_lr": 0.1}}}, ["epochs=5"]).learning_rate.warmup_epochs == 1
    assert load({"tolaria": {"task": "digits", "epochs": 1}}).learning_rate.warmup_epochs == 0
    assert load({"tolaria": {"epochs": 5}}, ["learning_rate.warmup_epochs=10"]).learning_rate.warmup_epochs == 10


def test_a_function_of_a_policy_is_relative_to_the_file_that_names_it(write, tmp_path):
    """As a task's file is; in `--set`, to the working folder. The given mapping is left as it was."""
    text = "tolaria:\n  learning_rate: {policy: ./s.py:f}\n  optimizer: {groups: [{match: '*', policy: t.py:g}]}\n"
    settings = load(write(text))
    assert settings.learning_rate.policy == f"{tmp_path}/s.py:f"
    assert settings.optimizer.groups[0].policy == f"{tmp_path}/t.py:g"
    given = {"tolaria": {"learning_rate": {"policy": "s.py:f"}}}
    assert load(given).learning_rate.policy == f"{Path.cwd()}/s.py:f"
    assert given == {"tolaria": {"learning_rate": {"policy": "s.py:f"}}}
    assert load(None, ["learning_rate.policy=s.py:f"]).learning_rate.policy == f"{Path.cwd()}/s.py:f"


def test_a_misspelled_policy_names_the_nearest_and_the_form_of_a_function(write):
    """The words are listed, although other text is allowed beside them."""
    said = message(write("tolaria:\n  learning_rate: {policy: onecyle}\n"))
    assert "cosine_restarts, file.py:function" in said
    assert "did you mean onecycle?" in said
    assert "must be one of" in message(None, ["learning_rate.policy=sched:f"])


def test_a_file_is_layered_over_its_tasks_defaults(write):
    """Task defaults, then the file, then --set."""
    settings = load(write("tolaria:\n  task: digits\n  epochs: 3\n"), ["batch_size=32"])

    assert (settings.epochs, settings.batch_size, settings.learning_rate.base_lr) == (3, 32, 3e-3)


def test_a_tasks_file_counts_from_where_it_was_written(write, tmp_path, monkeypatch):
    """From the configuration's folder, in --set from the working folder; the other one only if it is not there."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    path = write("tolaria:\n  task: ./task.py:Mine\n")
    assert path.parent != work
    assert load(path).task == f"{path.parent}/task.py:Mine"
    assert load(path, ["task=../other.py:Mine"]).task == f"{tmp_path}/other.py:Mine"
    (work / "task.py").touch()
    assert load(path).task == f"{work}/task.py:Mine"
    (path.parent / "task.py").touch()
    assert load(path).task == f"{path.parent}/task.py:Mine"
    assert load(None, ["task=/else/where.py:Mine"]).task == "/else/where.py:Mine"
    assert load(None, ["task=package.module:Name"]).task == "package.module:Name"


def test_a_strategys_file_counts_from_where_it_was_written(write, tmp_path):
    """As a task's file does. The words for the built-in policy and for none stay as they are."""
    path = write("tolaria:\n  strategy: ./mine.py:Mine\n")
    assert load(path).strategy == f"{path.parent}/mine.py:Mine"
    assert load(None, ["strategy=mine.py:Mine"]).strategy == f"{Path.cwd()}/mine.py:Mine"
    assert [load(None, [f"strategy={name}"]).strategy for name in ("none", "default")] == ["none", "default"]
    assert "did you mean default?" in message(None, ["strategy=defualt"])


def test_the_file_of_a_blueprint_counts_from_where_it_was_written(write):
    """So does that of a policy for the seeds' optimizer. Names of blueprints stay as they are."""
    groups = "optimizer: {name: sgd, groups: [{match: '*', policy: 'p.py:f'}]}"
    path = write(f"tolaria:\n  seeds: {{blueprints: [conv, ./mine.py:Mine], {groups}}}\n")
    (path.parent / "p.py").write_text("def f(t): return 1.0\n")
    seeds = load(path).seeds
    assert seeds.blueprints == ("conv", f"{path.parent}/mine.py:Mine")
    assert seeds.optimizer.groups[0].policy.startswith(f"{path.parent}/p.py:f")


def test_set_may_choose_the_task():
    """`tolariad run --task digits` needs no file."""
    assert load(None, ["task=chars"]).learning_rate.base_lr == 3e-4


def test_yaml_is_read_as_yaml_1_2(write):
    """`off` is a word, `3e-4` a number, `010` ten, a date a text."""
    path = write(
        "tolaria:\n  determinism: off\n  batch_size: 010\n  learning_rate: {base_lr: 3e-4}\n"
        "  task_options: {yes: no, day: 2024-01-01, at: 12:30}\n"
    )
    settings = load(path)

    assert settings.determinism == "off"
    assert settings.batch_size == 10
    assert settings.learning_rate.base_lr == 3e-4
    assert settings.task_options == {"yes": "no", "day": "2024-01-01", "at": "12:30"}


def test_an_unknown_key_is_placed_in_its_line(write):
    """The complaint names file, line, key and the nearest known name."""
    path = write("tolaria:\n  task: digits\n  rollback:\n    fast_path_timeout: 3\n")

    assert f"{path}:4: rollback.fast_path_timeout: unknown key; did you mean fast_path_timeout_ms?" in message(path)


def test_a_rule_between_values_is_placed_in_its_line(write):
    """Contradictions point into the file as well."""
    path = write("tolaria:\n  optimizer:\n    name: sgd\n    betas: [0.9, 0.99]\n")

    assert f"{path}:4: optimizer.betas: sgd has no such argument" in message(path)


def test_a_key_that_stands_twice_is_refused(write):
    """The parser would keep the last one in silence."""
    path = write("tolaria:\n  epochs: 3\n  task: digits\n  epochs: 4\n")

    assert f"{path}:4: epochs: is a duplicate key; the first one is in line 2" in message(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the single key `tolaria:`"),
        ("- 1\n", "the single key `tolaria:`"),
        ("epochs: 3\n", "the single key `tolaria:`"),
        ("tolaria: {}\nepochs: 3\n", "epochs: is beside `tolaria:`; indent it"),
        ("tolaria: 3\n", "must be a mapping of keys"),
        ("tolaria: [\n", "is not valid YAML"),
        ("tolaria: {}\n---\ntolaria: {}\n", "is not valid YAML"),
        ("tolaria: !!python/object/apply:os.system [echo]\n", "is not valid YAML"),
        ("tolaria:\n  ? [a]\n  : 1\n", "is not valid YAML"),
        ("tolaria: " + "[" * 600, "parse"),
        ("tolaria:\n  task_options: {a: .nan}\n", "finite"),
    ],
)
def test_what_is_no_configuration_is_refused_by_what_is_wrong(write, text, said):
    """Any bytes lead to a ConfigError with a place."""
    path = write(text)

    told = message(path)
    assert said in told
    assert str(path) in told


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """Missing, a folder, too large, not text: each is said."""
    binary, huge = tmp_path / "binary.yaml", tmp_path / "huge.yaml"
    binary.write_bytes(b"\xff\xfe")
    huge.write_bytes(b"#" * (config.CONFIG_BYTES_MAX + 1))

    assert "No such file" in message(tmp_path / "none.yaml")
    assert "--set" not in message(tmp_path / "none.yaml")
    assert "No such file or directory; to set a key, give --set epochs=5" in message(Path("epochs=5"))
    assert "cannot be read" in message(tmp_path)
    assert "not valid UTF-8" in message(binary)
    assert "larger than" in message(huge)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs", "must be key=value"),
        ("=3", "must be key=value"),
        ("a..b=3", "must be key=value"),
        ("epochs.x=3", "--set epochs.x: epochs: expected an integer"),
        ("epoch=3", "--set epoch: unknown key; did you mean epochs?"),
        ("epochs=[", "is not valid YAML"),
    ],
)
def test_a_bad_set_is_named_as_it_was_typed(text, said):
    """`--set` is bad input like a file is."""
    assert said in message(None, [text])


def test_set_takes_dotted_keys_and_yaml_values():
    """Sections are made as needed, `tolaria.` may lead, lists and words work, the last one wins."""
    sets = ["tolaria.stop.hours=1.5", "optimizer.groups=[{match: '*.bias', weight_decay: 0}]", "epochs=3", "epochs=4"]
    settings = load({"tolaria": None}, sets)

    assert settings.stop.hours == 1.5
    assert settings.optimizer.groups[0].match == "*.bias"
    assert settings.epochs == 4


def test_a_mapping_given_to_load_is_left_as_it_was():
    """--set works on a copy."""
    given = {"tolaria": {"stop": {"hours": 1.0}}}
    load(given, ["stop.hours=2.0", "stop.steps=5"])

    assert given == {"tolaria": {"stop": {"hours": 1.0}}}


@pytest.mark.parametrize(
    ("detect", "acts"),
    [
        ({}, (True, True, True, False)),
        ({"rollback": True}, (True, True, True, False)),
        ({"rollback": False}, (False, True, True, False)),
        ({"trial": False}, (True, True, False, False)),
        ({"halt": True}, (True, True, True, True)),
        ({"act": False, "rollback": True}, (False, True, True, False)),
    ],
)
def test_by_default_findings_are_acted_on_and_no_finite_value_halts(detect, acts):
    """What is finite is insured and tried both ways; who wants no rollback, no trial, or a halt says so."""
    policy = policy_of(load({"tolaria": {"detect": detect}}))
    assert (policy.detect_rollback, policy.detect_finite, policy.detect_trial, policy.detect_halt) == acts


def test_the_resolved_form_is_a_configuration(write):
    """config.resolved.json can be given to `tolariad run` again."""
    settings = load({"tolaria": {"task": "digits", "rng_seed": 7}})

    assert load(write(resolved_json(settings).decode())) == settings


def test_the_schema_knows_every_top_level_key():
    """An editor that reads the schema completes what the loader accepts, and nothing else."""
    described = config.schema()

    inner = described["$defs"]["Settings"]
    assert json.loads(json.dumps(described))["required"] == ["tolaria"]
    assert set(inner["properties"]) == set(Settings.__struct_fields__)
    assert inner["additionalProperties"] is False


def test_the_schema_has_the_short_form_of_a_section():
    """A number, or nothing, in place of the mapping."""
    every = config.schema()["$defs"]["Snapshots"]["properties"]["every"]

    assert [one.get("type", one.get("$ref")) for one in every["anyOf"]] == ["#/$defs/SnapshotEvery", "integer", "null"]
    assert "$ref" not in every


def test_pruning_without_its_package_is_refused_by_name(monkeypatch):
    """With the command that installs it; a run that does not prune needs nothing."""
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda name: None)
    config.require_extras(load({"tolaria": {}}))

    with pytest.raises(ConfigError, match=r"^prune\.enabled: needs .* pip install 'tolariad\[pruning\]'"):
        config.require_extras(load({"tolaria": {}}, ["prune.enabled=true"]))


def test_the_environment_sets_keys_and_set_comes_after_it(write):
    """`TOLARIA__a__b` is the key `a.b`, in YAML; the file comes before it, `--set` after it."""
    environ = {"TOLARIA__learning_rate__base_lr": "0.1", "TOLARIA__epochs": "3", "TOLARIA_RUN": "x", "HOME": "/"}
    settings = load(write("tolaria: {epochs: 7, batch_size: 5}"), ["epochs=4"], environ)

    assert (settings.learning_rate.base_lr, settings.epochs, settings.batch_size) == (0.1, 4, 5)
    assert config.from_environment(environ) == {
        "epochs": "TOLARIA__epochs",
        "learning_rate.base_lr": "TOLARIA__learning_rate__base_lr",
    }


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("TOLARIA__epochs", "many", "TOLARIA__epochs: epochs"),
        ("TOLARIA__learnig_rate__base_lr", "1", "learning_rate"),
        ("TOLARIA__", "1", "TOLARIA__: names no key"),
        ("TOLARIA__epochs__more", "1", "TOLARIA__epochs__more"),
        ("TOLARIA__epochs", "[", "TOLARIA__epochs"),
    ],
)
def test_a_wrong_variable_is_named(variable, text, said):
    """A wrong value, an unknown key, no key, and text that is no YAML."""
    with pytest.raises(ConfigError) as refused:
        load(None, (), {variable: text})

    assert said in str(refused.value)


def test_a_warm_up_in_steps_takes_the_place_of_epochs():
    """Without one of one's own there is no warm-up in epochs then; both are refused. A later start keeps it."""
    settings = load(None, ["task=digits", "learning_rate.warmup_steps=30"])
    assert (settings.learning_rate.warmup_steps, settings.learning_rate.warmup_epochs) == (30, 0)
    again = load(json.loads(resolved_json(settings)))
    assert again.learning_rate == settings.learning_rate
    for path in ("learning_rate.", "optimizers.all."):
        with pytest.raises(ConfigError, match="both set"):
            load(None, [f"{path}warmup_steps=30", f"{path}warmup_epochs=2", *(["task=digits"])])
