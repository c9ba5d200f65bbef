"""Impossible values under every key of the configuration: a refusal that names the key, or a run that can be folded."""

from __future__ import annotations

import math

import msgspec
import pytest
from msgspec import inspect

from tests.core.facts import daemon_started
from tests.extremes import NUMBERS, TEXTS, document, drawn, extremes, is_number
from tolariad import config
from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.core.calc.settings.rules import read_resolved
from tolariad.core.messages.vocabulary import decode_event, encode_event
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState, capture, fold, read_capture
from tolariad.daemon.settings import resolve

# So many values are tried of a key in the ordinary suite.
MOST = 200
VALUES = (*NUMBERS, *TEXTS, None)
INFO = inspect.type_info(Settings)
assert isinstance(INFO, inspect.StructType)
FIELDS = {field.encode_name: field.type for field in INFO.fields}


def begins(settings: Settings) -> None:
    """Assert that a run can be begun under these settings: recorded, decided on, folded, captured, read again."""
    resolved = resolve(settings)
    started = m.RunStarted(
        run_id="00" * 16,
        name="x",
        task=settings.task or "",
        rng_seed=resolved.settings.rng_seed or 0,
        config=resolved.text,
        config_hash=resolved.hash,
        policy=resolved.policy,
        version="0.1",
    )
    opened = m.Opened(mode=m.StartMode.EXPLICIT, facts=(started, daemon_started()))
    events = decide(RunState(), opened, m.Now(1, 1)).events
    assert [decode_event(encode_event(event)) for event in events] == list(events)
    assert read_capture(capture(fold(RunState(), events))) is not None
    assert read_resolved(resolved.text.encode()) == resolved.settings


@pytest.mark.sample(12)
@pytest.mark.parametrize("most", [MOST, pytest.param(None, marks=pytest.mark.torture)])
@pytest.mark.parametrize("key", FIELDS)
def test_every_key_with_an_extreme_is_refused_by_name_or_begins_a_run(seed, key, most):
    """Each key of each section, list and mapping below it. Sections within sections have thousands: some are drawn."""
    refusals = []
    for value in drawn([value for _, value in extremes(FIELDS[key], VALUES)], most, seed, key):
        try:
            settings = config.load({"tolaria": {key: value}})
        except ConfigError as error:
            refusals.append(error)
            continue
        begins(settings)

    assert len(refusals) > 3
    assert [str(one)[:200] for one in refusals if not one.problems[0].path.startswith(key)] == []
    assert [str(one)[:200] for one in refusals if len(one.problems[0].what) > 500] == []


def numbers(kind: inspect.Type, path: str, meta: inspect.Metadata | None = None):
    """Every number that a configuration may hold, with what bounds it."""
    match kind:
        case inspect.Metadata():
            yield from numbers(kind.type, path, kind)
        case inspect.UnionType():
            for one in kind.types:
                yield from numbers(one, path, meta)
        case inspect.StructType():
            for field in kind.fields:
                yield from numbers(field.type, f"{path}.{field.encode_name}")
        case inspect.VarTupleType():
            yield from numbers(kind.item_type, path)
        case inspect.TupleType():
            yield from numbers(kind.item_types[0], path)
        case inspect.DictType() if isinstance(kind.value_type, inspect.StructType):
            yield from numbers(kind.value_type, path)
        case _ if is_number(kind):
            yield path, kind


def test_every_number_of_a_configuration_has_two_bounds():
    """A new key cannot forget them."""
    found = dict(numbers(INFO, ""))
    unbounded = [
        path
        for path, kind in found.items()
        if (kind.ge is None and kind.gt is None) or (kind.le is None and kind.lt is None)
    ]

    assert len(found) > 60
    assert unbounded == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("checkpoint.keep_days", "1e308"),
        ("checkpoint.interval_s", "1e308"),
        ("checkpoint_storage_quota_gb", "1e308"),
        ("journal.segment_bytes", "9" * 23),
        ("torch_threads", "99999999999"),
        ("epochs", "9" * 5000),
    ],
)
def test_what_once_broke_a_start_is_refused_by_its_key(key, text):
    """As it is typed after --set."""
    with pytest.raises(ConfigError, match=key):
        config.load({"tolaria": {"task": "digits"}}, [f"{key}={text}"])


def test_settings_that_a_program_made_are_held_to_the_same_bounds(tmp_path):
    """A Struct is not checked when it is made; a run's start checks it."""
    from tolariad.daemon.request import RunRequest, StartRefused
    from tolariad.daemon.settings import load

    for changes, key in (({"epochs": 2**64}, "epochs"), ({"checkpoint_storage_quota_gb": math.inf}, "quota_gb")):
        settings = msgspec.structs.replace(Settings(task="digits"), **changes)
        with pytest.raises(StartRefused, match=key) as caught:
            load(RunRequest(run_dir=tmp_path, settings=settings))
        assert caught.value.code == 78


def test_the_usual_document_is_whole():
    """The generator of these tests makes every section; otherwise they would test nothing."""
    made = document(Settings)

    assert set(made) == set(Settings.__struct_fields__)
    assert isinstance(made["rollback"], dict)
