"""Settings: every problem of a document is found and named; equal settings have one canonical form."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.calc.health.budgets import FED_BREAKERS
from tolariad.core.calc.settings.changes import (
    FREE,
    NEVER,
    RELOADABLE,
    Change,
    change_of,
    is_reloadable,
    is_under,
    why_never,
)
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.reading import ConfigError, known_keys, read_settings
from tolariad.core.calc.settings.rules import (
    WITHOUT_EFFECT,
    check,
    difference,
    exact_json,
    optimizer_arguments,
    rate_notes,
    read_resolved,
    require_task,
    resolved_json,
    with_implied_warmup,
    with_warmup_of,
    without_effect,
)
from tolariad.core.calc.settings.task_defaults import TASK_DEFAULTS, TASK_OPTIONS, defaults_of, layer

WEIGHTS = {"Shadowin": 1.0, "DORMANT": 0.5, "PROBATIONARY": 1.0}


def problems_of(document: dict) -> dict[str, tuple[str, str | None]]:
    """Read a document that must be refused; what was said, by key."""
    with pytest.raises(ConfigError) as caught:
        read_settings(document)
    return {problem.path: (problem.what, problem.nearest) for problem in caught.value.problems}


def test_a_stage_without_a_seed_has_no_weight():
    """The nearest stage is named; DORMANT is a stage, but has no seed."""
    found = {one.path: (one.what, one.nearest) for one in check(read_settings({"seeds": {"stage_weights": WEIGHTS}}))}

    assert set(found) == {"seeds.stage_weights.Shadowin", "seeds.stage_weights.DORMANT"}
    assert found["seeds.stage_weights.Shadowin"][1] == "SHADOWING"
    assert "the stages are GERMINATED, TRAINING" in found["seeds.stage_weights.DORMANT"][0]


def test_a_silent_document_gives_the_source_documents_defaults():
    """Nothing configured means the values that the source documents name."""
    settings = read_settings({})

    assert settings == Settings()
    assert settings.learning_rate.base_lr == 0.0001
    assert settings.rollback.full_path_timeout_s == 12.0
    assert settings.checkpoint_storage_quota_gb == 100
    assert settings.journal.segment_bytes == 100_000_000


@pytest.mark.parametrize(
    ("document", "path", "nearest"),
    [
        ({"checkpoint": {"patience": 3}}, "checkpoint.patience", "stop.patience"),
        ({"checkpoint": {"keep_lst": 3}}, "checkpoint.keep_lst", "keep_last"),
        ({"epoch": 3}, "epoch", "epochs"),
        ({"rollback": {"fast_path_timout_ms": 1}}, "rollback.fast_path_timout_ms", "fast_path_timeout_ms"),
        ({"base_lr": 1.0}, "base_lr", "learning_rate.base_lr"),
        (
            {"optimizer": {"groups": [{"match": "*", "weight_deca": 0.0}]}},
            "optimizer.groups[0].weight_deca",
            "weight_decay",
        ),
        ({"breakers": {"lr": {"failure": 2}}}, "breakers.lr.failure", "failures"),
        ({"zzzz": 1}, "zzzz", None),
    ],
)
def test_an_unknown_key_is_named_with_its_path_and_the_nearest_known_one(document, path, nearest):
    """The message for a typing error has its place and the name that was probably meant."""
    assert problems_of(document) == {path: ("unknown key", nearest)}


@pytest.mark.parametrize("task", TASK_DEFAULTS)
def test_a_built_in_task_refuses_an_option_that_it_does_not_have(task):
    """With the nearest of its options, if it has one that is near; a task without a row in the table too."""
    options = TASK_OPTIONS.get(task, {})
    (problem,) = check(read_settings({"task": task, "task_options": {"modle": "cnn"}}))

    assert problem.path == "task_options.modle"
    assert problem.what == f"the task {task} has no such option; its options: {', '.join(options) or 'none'}"
    assert problem.nearest == ("model" if "model" in options else None)


def test_all_problems_are_reported_together():
    """Three mistakes give three messages, not only the first."""
    found = problems_of({"epochs": 0, "precision": "fp23", "learning_rate": {"base_lr": "3"}, "rollback": 5})

    assert set(found) == {"epochs", "precision", "learning_rate.base_lr", "rollback"}
    assert found["precision"][1] in {"fp32", "fp16"}


@pytest.mark.parametrize(("path", "use"), [("optimizer.lr", "learning_rate.base_lr"), ("lr", "learning_rate.base_lr")])
def test_a_rate_under_the_optimizer_is_refused_with_the_key_to_use(path, use):
    """Rates have one place; the message says which."""
    document = {"optimizer": {"lr": 0.1}} if path.startswith("optimizer") else {"lr": 0.1}

    assert use in problems_of(document)[path][0]


def test_a_literal_secret_is_refused_and_not_repeated():
    """A password in the file is an error, and the error does not print it."""
    found = problems_of({"telemetry": {"bus_password": "hunter2"}})

    what, _ = found["telemetry.bus_password"]
    assert "env:NAME" in what
    assert "hunter2" not in what
    assert read_settings({"telemetry": {"bus_password": "env:BUS"}}).telemetry.bus_password == "env:BUS"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(value):
    """Such a number has no place in JSON, and none in a configuration."""
    assert "finite" in problems_of({"checkpoint": {"interval_s": value}})["checkpoint.interval_s"][0]


@pytest.mark.parametrize("value", [1, 6])
def test_pruning_checkpoint_interval_is_two_to_five_epochs(value):
    """The bound of the source documents holds on both sides."""
    assert "pruning_checkpoint_interval" in problems_of({"pruning_checkpoint_interval": value})


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"task": "digit"}, "task"),
        ({"learning_rate": {"base_lr": 1e-7}}, "learning_rate.base_lr"),
        ({"learning_rate": {"base_lr": 1.0, "max_lr": 0.1}}, "learning_rate.base_lr"),
        ({"optimizer": {"groups": [{"match": "*", "base_lr": 1e-9}]}}, "optimizer.groups[0].base_lr"),
        ({"optimizer": {"name": "sgd", "betas": [0.9, 0.99]}}, "optimizer.betas"),
        ({"optimizer": {"groups": [{"match": "*", "momentum": 0.5}]}}, "optimizer.groups[0].momentum"),
        ({"optimizer": {"name": "sgd", "nesterov": True}}, "optimizer.nesterov"),
        ({"optimizer": {"name": "adagrad", "lr_decay": 0.1}}, "optimizer.lr_decay"),
        (
            {"learning_rate": {"circuit_breaker_threshold": 4}, "breakers": {"lr": {"failures": 5}}},
            "breakers.lr.failures",
        ),
    ],
)
def test_values_that_contradict_each_other_are_found(document, path):
    """Each value may be right by itself; together they are not."""
    assert [problem.path for problem in check(read_settings(document))] == [path]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lrr", "no breaker with this name.*did you mean lr"),
        ("lr_stepp", "no breaker with this name.*did you mean lr_step"),
        ("zzzz", "no breaker with this name; the breakers are lr, "),
        ("group_addition", "this breaker would never open: no change of a model is timed yet"),
        ("journal_append", "this breaker would never open: an overrun of this budget is recorded"),
        ("full_rollback", "this breaker would never open: an overrun"),
        ("telemetry_queue", "this breaker would never open"),
    ],
)
def test_a_breaker_that_nothing_feeds_is_refused(name, said):
    """With the nearest name that something feeds, or the reason why nothing does."""
    (problem,) = check(read_settings({"breakers": {name: {"failures": 2}}}))

    assert problem.path == f"breakers.{name}"
    assert re.search(said, str(problem))


def test_every_breaker_that_something_feeds_is_accepted():
    """`lr`, and the soft budgets in time that are measured."""
    assert {"lr", "lr_step", "checkpoint", "optimizer_rebuild"} <= set(FED_BREAKERS)
    assert check(read_settings({"breakers": {name: {"failures": 2} for name in FED_BREAKERS}})) == []


def test_task_defaults_lie_under_explicit_keys():
    """A built-in task brings its own rate; a key that is given wins over it."""
    quiet = read_settings(layer(defaults_of("digits"), {"task": "digits"}))
    loud = read_settings(layer(defaults_of("digits"), {"task": "digits", "learning_rate": {"base_lr": 0.5}}))

    assert quiet.learning_rate.base_lr == 3e-3
    assert loud.learning_rate.base_lr == 0.5
    assert loud.learning_rate.warmup_epochs == 1
    assert defaults_of("own.module:Task") == {}


@pytest.mark.parametrize("task", list(TASK_DEFAULTS))
def test_built_in_tasks_are_valid_without_another_word(task):
    """`--task NAME` is a whole configuration."""
    settings = read_settings(layer(defaults_of(task), {"task": task}))

    assert check(settings) == []
    assert require_task(settings) == task
    assert list(rate_notes(settings)) == []


def test_a_run_needs_a_task():
    """A configuration without a task is refused with the ways to name one."""
    with pytest.raises(ConfigError, match="task: is required: digits"):
        require_task(Settings())


def test_a_warmup_that_does_not_fit_is_said():
    """Of the whole run or of one group; one that fits is not mentioned."""
    group = {"match": "*", "warmup_epochs": 9}
    of_group = {"epochs": 8, "learning_rate": {"warmup_epochs": 0}, "optimizer": {"groups": [group]}}

    assert "shortened to half" in " ".join(rate_notes(read_settings({"epochs": 4})))
    assert "of 9 epochs" in " ".join(rate_notes(read_settings(of_group)))
    assert list(rate_notes(read_settings({"epochs": 100}))) == []


def test_a_key_of_a_schedule_without_effect_is_said():
    """A warm-up beside a policy that rises by itself, and restarts of which there are none."""
    onecycle = {"learning_rate": {"policy": "onecycle", "warmup_epochs": 3}}
    of_group = {"learning_rate": {"warmup_epochs": 0, "policy": "onecycle"}}
    of_group |= {"optimizer": {"groups": [{"match": "*", "policy": "./a.py:f", "warmup_epochs": 2}]}}

    assert list(rate_notes(read_settings(onecycle))) == [
        "a warm-up has no effect on the policy onecycle, whose curve begins at the first step"
    ]
    assert "no effect on the policy ./a.py:f" in " ".join(rate_notes(read_settings(of_group)))
    restarts = {"policy": "cosine_restarts", "warmup_epochs": 0}
    assert "has no restart" in " ".join(rate_notes(read_settings({"learning_rate": restarts})))
    assert list(rate_notes(read_settings({"learning_rate": {**restarts, "num_cycles": 2}}))) == []


@pytest.mark.parametrize(
    ("given", "epochs"),
    [
        ({}, 10),
        ({"epochs": 50}, 5),
        ({"epochs": 5}, 1),
        ({"epochs": 11}, 2),
        ({"epochs": 1}, 0),
        ({"task": "digits", "epochs": 100}, 1),
        ({"task": "digits", "epochs": 1}, 0),
        ({"learning_rate": {"policy": "onecycle"}}, 0),
        ({"learning_rate": {"policy": "./a.py:f"}}, 0),
    ],
)
def test_a_warmup_that_nobody_sets_fits(given, epochs):
    """10 epochs, or the task's, but at most a tenth of the run; so no run is told that a default does not fit."""
    settings = with_implied_warmup(read_settings(layer(defaults_of(given.get("task")), given)))

    assert settings.learning_rate.warmup_epochs == epochs
    assert list(rate_notes(settings)) == []


def test_more_epochs_keep_the_warmup_that_nobody_set():
    """A run that goes on changes one key; a warm-up that was set, then or now, is compared as any key is."""
    former, more = (with_implied_warmup(read_settings({"epochs": epochs})) for epochs in (5, 30))
    explicit = read_settings({"epochs": 30, "learning_rate": {"warmup_epochs": 7}})

    assert difference(former, with_warmup_of(more, former)) == ["epochs"]
    assert with_warmup_of(explicit, former) == explicit
    assert with_warmup_of(more, explicit) == more


def test_optimizer_arguments_are_what_was_given():
    """Absent arguments stay torch's, rates and names are not arguments."""
    settings = read_settings(
        {"optimizer": {"betas": [0.8, 0.9], "groups": [{"match": "*.bias", "base_lr": 0.1, "weight_decay": 0.0}]}}
    )

    assert optimizer_arguments(settings.optimizer) == {"betas": (0.8, 0.9)}
    assert optimizer_arguments(settings.optimizer.groups[0]) == {"weight_decay": 0.0}


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "epochs": st.integers(1, 10**6),
            "rng_seed": st.integers(0, 2**63 - 1),
            "task": st.sampled_from(["digits", "chars", "a.b:C", "./x.py:Y"]),
            "task_options": st.dictionaries(st.text(), st.text() | st.booleans() | st.integers(-(2**40), 2**40)),
            "keep_best": st.none() | st.text(),
            "learning_rate": st.fixed_dictionaries({}, optional={"base_lr": st.floats(1e-5, 10)}),
            "breakers": st.dictionaries(st.text(), st.fixed_dictionaries({"failures": st.integers(1, 9)})),
        },
    )
)
def test_the_resolved_form_reads_back_and_is_canonical(document):
    """The file in the run folder is the whole configuration, and equal settings give equal bytes."""
    settings = read_settings(document)
    written = resolved_json(settings)

    assert read_resolved(written) == settings
    assert resolved_json(read_settings(dict(reversed(document.items())))) == written
    assert difference(settings, read_resolved(written)) == []


def test_a_resolved_form_that_is_not_json_is_a_config_error():
    """A damaged file is said to be damaged."""
    with pytest.raises(ConfigError, match="not JSON"):
        read_resolved(b"\x00")


def test_difference_names_dotted_keys():
    """The keys that a changed file changes are listed, lists as a whole."""
    changed = read_settings({"epochs": 7, "logging": {"level": "debug"}, "optimizer": {"groups": [{"match": "*"}]}})

    assert difference(Settings(), changed) == ["epochs", "logging.level", "optimizer.groups"]
    assert [key for key in difference(Settings(), changed) if is_reloadable(key)] == ["logging.level"]


def test_keys_without_effect_are_listed_where_they_were_set():
    """Only what somebody set, and only what does nothing yet."""
    assert without_effect(Settings()) == []
    traces = read_settings({"epochs": 3, "telemetry": {"otlp_endpoint": "http://x"}})
    assert without_effect(traces) == ["telemetry.otlp_endpoint"]
    fragmented = read_settings({"prune": {"validation": {"fragmentation": 0.5, "layer_share": 0.4}}})
    assert without_effect(fragmented) == ["prune.validation.fragmentation"]
    assert without_effect(read_settings({"optimizers": {"generator": {}}})) == []
    assert without_effect(read_settings({"rollback": {"fast_path_enabled": False}})) == []
    assert without_effect(read_settings({"journal": {"sync": "step"}})) == []
    assert without_effect(read_settings({"journal": {"sync": "batch"}})) == []


def test_tables_of_keys_name_keys_that_exist():
    """A renamed setting cannot leave its old name in a table."""
    known = set(known_keys())

    assert {*RELOADABLE, *WITHOUT_EFFECT} <= known
    assert all(any(is_under(key, (one,)) for key in known) for one in (*FREE, *NEVER))


def test_every_key_is_free_needs_a_word_or_never_changes():
    """Ends, cadence, retention and what a live run reloads are free; what a resume cannot change has a reason."""
    kinds = {key: change_of(key) for key in known_keys()}
    free = ("epochs", "stop.steps", "stop.patience", "checkpoint.interval_s", "checkpoint.keep_last", "logging.level")
    accept = ("learning_rate.base_lr", "task", "task_options", "precision", "detect.skip", "workers", "ema.decay")
    never = ("rng_seed", "batch_size", "optimizer.name", "optimizer.weight_decay")

    assert {kinds[key] for key in free} == {Change.FREE}
    assert {kinds[key] for key in accept} == {Change.ACCEPT}
    assert {kinds[key] for key in never} == {Change.NEVER}
    assert all(change_of(key) is Change.FREE for key in known_keys() if is_reloadable(key))
    assert all(bool(why_never(key)) == (kind is Change.NEVER) for key, kind in kinds.items())


def test_a_free_key_leaves_the_exact_settings_as_they_are():
    """So a re-run after it is still compared bit for bit; any other key makes another context."""
    free = {"epochs": 9, "stop": {"steps": 7}, "checkpoint": {"interval_s": 5.0}, "logging": {"level": "debug"}}

    assert exact_json(read_settings(free)) == exact_json(Settings())
    for other in ({"learning_rate": {"base_lr": 0.5}}, {"precision": "bf16"}, {"task_options": {"model": "cnn"}}):
        assert exact_json(read_settings(other)) != exact_json(Settings())


def test_every_setting_is_described():
    """The page and the schema have a sentence for every key."""
    described = msgspec.json.schema(Settings)["$defs"]
    bare = [
        f"{struct}.{key}"
        for struct, body in described.items()
        for key, value in body.get("properties", {}).items()
        if "description" not in value and "$ref" not in value and "default" in value and "$ref" not in str(value)
    ]

    assert bare == []


@pytest.mark.parametrize(("given", "meant"), [("adamW", "adamw"), ("SGD", "sgd")])
def test_a_value_in_other_letters_is_known(given, meant):
    """The nearest value is the same one in small letters, if there is one."""
    with pytest.raises(ConfigError, match=f"got '{given}'; did you mean {meant}") as refused:
        read_settings({"optimizer": {"name": given}})
    assert str(refused.value).count("did you mean") == 1


@pytest.mark.parametrize(
    ("prune", "key", "said"),
    [
        ({"caps": [{"epoch": 50, "share": 0.1}, {"epoch": 40, "share": 0.2}]}, "prune.caps", "ascending order"),
        ({"budgets": [{"epoch": 40, "share": 0.1}, {"epoch": 40, "share": 0.2}]}, "prune.budgets", "ascending order"),
        ({"caps": [{"epoch": 0, "share": 0.2}, {"epoch": 40, "share": 0.1}]}, "prune.caps", "may not fall"),
    ],
)
def test_a_schedule_of_pruning_that_contradicts_itself_is_refused(prune, key, said):
    """Entries out of order, two for one epoch, a cap that falls."""
    (problem,) = check(read_settings({"prune": prune}))

    assert problem.path == key
    assert said in problem.what
