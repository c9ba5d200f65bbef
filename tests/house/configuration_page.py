"""Generate docs/configuration.md from the settings, so that page and code cannot differ.

Promises: the same settings give the same text.
"""

from __future__ import annotations

import typing
from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from tests.house.wrapping import wrapped
from tolariad.core.calc.settings.changes import NEVER, change_of, is_reloadable
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.optimization import Optimizer, PartOptimizer
from tolariad.core.calc.settings.reading import choices_of, fields_of, is_secret, items_of, section_of
from tolariad.core.calc.settings.rules import OPTIMIZER_ARGUMENTS, WITHOUT_EFFECT
from tolariad.core.calc.settings.task_defaults import TASK_DEFAULTS, Layer

_HEAD = """\
# Configuration

A configuration is one YAML document with the top-level key `tolaria:`. Every key has a default, so an example is short:

    tolaria:
      task: ./task.py:MyTask
      epochs: 30
      learning_rate:
        base_lr: 3e-4

`tolariad check CONFIG.yaml` validates a file and shows what its run costs; `--verbose` prints all values that it would
use. `tolariad check --schema` prints a JSON Schema. `--set KEY=VALUE` overrides a key; a key in a section is written
with dots: `--set learning_rate.base_lr=3e-4`. `make docs` generates this page.

Values are read by the rules of YAML 1.2: only `true` and `false` are booleans, `3e-4` is a number, `off` is text. An
unknown key, a duplicate key, a value of the wrong type or a value out of range is an error. The error names file, line
and key, and the nearest known name. No run starts then, and the exit code is 78.

Every number has a lower and an upper bound. A file has at most 131 072 bytes and as many values; a value that an alias
repeats counts each time. A built-in task refuses an option that it does not have.

The file never contains a secret itself, only a reference: `env:NAME`, `file:PATH`, or `credential:NAME` for a
credential of systemd.

A value comes from the first that has the key: `--task`, `--epochs` and `--set`; the environment; the file; the defaults
of the built-in task, below; the general default. In the environment, `TOLARIA__learning_rate__base_lr=3e-4` sets the
key `learning_rate.base_lr`. A run keeps its values in the journal. A start without a file and without `--task` takes
them from there instead of a file.

## What a start may change

The last column of the tables says what happens if a run is started again with another value of the key:

* *free*: the start takes it over. An end that has passed already is refused. Keys marked *reload* may also change
  during a run: edit the file, then send SIGHUP to the daemon;
* *accept*: the start needs `--accept-config`. The steps since the last checkpoint are made again and may differ from
  the journal; a line on the console says how many do;
* *never*: no start changes it. `tolariad run CONFIG --dir OTHER --from RUN` begins another run with the weights of this
  one.

Each change is recorded as `ConfigChanged`. A refused start changes nothing and exits with 78. It names each key, its
old and its new value, and the command that does what was meant.

These keys never change:

{never}

A key marked *later* is accepted, but has no effect in this version; `tolariad check` lists such keys.
"""


def configuration_page() -> str:
    """Return the whole page as Markdown."""
    never = "\n".join(f"* `{key}`: {why};" for key, why in NEVER.items())
    parts = [_HEAD.format(never=f"{never[:-1]}."), "## The top level\n", _table(Settings, ""), *_sections(Settings, "")]
    return wrapped("\n".join([*parts, _optimizer_table(), _task_table()]))


def _sections(kind: type[Struct], prefix: str) -> list[str]:
    parts: list[str] = []
    for field in fields_of(kind).values():
        item = items_of(field.type)
        inner = section_of(field.type) or item
        if inner is None:
            continue
        key = f"{prefix}{field.name}"
        shape = "" if item is None else (" (by name)" if _is_mapping(field.type) else " (a list)")
        # Each of `optimizers` has the fields of `optimizer`, which are not printed again.
        again = tuple(fields_of(Optimizer)) if inner is PartOptimizer else ()
        parts += [f"## `{key}`{shape}\n", f"{_first_line(inner)}\n", _table(inner, f"{key}.", again)]
        if not again:
            parts += _sections(inner, f"{key}.")
    return parts


def _table(kind: type[Struct], prefix: str, without: Collection[str] = ()) -> str:
    rows = ["| key | type | default | meaning | at a start |", "|---|---|---|---|---|"]
    for field in fields_of(kind).values():
        if field.name in without:
            continue
        if section_of(field.type) is not None:
            rows.append(f"| `{field.name}` | section | | [below](#{prefix.replace('.', '')}{field.name}) | |")
            continue
        key = f"{prefix}{field.name}"
        cells = (f"`{field.name}`", _type_text(field.type), _default_text(field), _meaning(field.type), _marks(key))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _optimizer_table() -> str:
    rows = ["## Arguments of the optimizers\n", "| optimizer | arguments |", "|---|---|"]
    for name, known in OPTIMIZER_ARGUMENTS.items():
        rows.append(f"| `{name}` | {', '.join(f'`{key}`' for key in sorted(known))} |")
    return "\n".join(rows) + "\n"


def _task_table() -> str:
    rows = [
        "## Defaults of the built-in tasks\n",
        "A key that is set explicitly takes precedence.\n",
        "| key | " + " | ".join(TASK_DEFAULTS) + " |",
    ]
    rows.append("|---" * (len(TASK_DEFAULTS) + 1) + "|")
    flats = [dict(_flat(defaults, "")) for defaults in TASK_DEFAULTS.values()]
    keys = sorted(set().union(*flats))
    rows += [f"| `{key}` | {' | '.join(_literal(flat.get(key)) for flat in flats)} |" for key in keys]
    return "\n".join(rows) + "\n"


def _flat(values: Layer, prefix: str) -> typing.Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_mapping(kind: Any) -> bool:
    return typing.get_origin(typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind) is dict


def _first_line(kind: type[Struct]) -> str:
    return (kind.__doc__ or "").strip().split("\n", 1)[0]


def _metas(kind: Any) -> typing.Iterator[Meta]:
    """Yield the annotations of a field, outer ones first, through `| None` as well."""
    if typing.get_origin(kind) is Annotated:
        inner, *metas = typing.get_args(kind)
        yield from (meta for meta in metas if isinstance(meta, Meta))
        yield from _metas(inner)
    elif typing.get_origin(kind) not in {dict, tuple, typing.Literal}:
        for part in typing.get_args(kind):
            yield from _metas(part)


def _meaning(kind: Any) -> str:
    return next((meta.description for meta in _metas(kind) if meta.description), "")


def _type_text(kind: Any) -> str:
    if is_secret(kind):
        return "secret"
    choices = choices_of(kind)
    if choices:
        return ", ".join(f"`{word}`" for word in choices)
    return f"{_plain_type(kind)}{_range_text(kind)}"


def _plain_type(kind: Any) -> str:
    if typing.get_origin(kind) is Annotated:
        return _plain_type(typing.get_args(kind)[0])
    if typing.get_origin(kind) is dict:
        return "mapping"
    if typing.get_origin(kind) is tuple:
        inner = [part for part in typing.get_args(kind) if part is not Ellipsis]
        return "list" if len(inner) == 1 else f"{len(inner)} {_plain_type(inner[0])}s"
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(str(value) for value in typing.get_args(kind))
    options = [part for part in typing.get_args(kind) if part is not type(None)]
    if options:
        return " or ".join(_plain_type(part) for part in options)
    name = str(kind.__name__)
    return {"int": "integer", "float": "number", "str": "text", "bool": "true or false"}.get(name, name)


def _range_text(kind: Any) -> str:
    bounds: list[str] = []
    for meta in _metas(kind):
        bounds += [f"≥ {meta.ge}"] if meta.ge is not None else []
        bounds += [f"> {meta.gt}"] if meta.gt is not None else []
        # Leave out bounds that only keep a number exact: they do not help a reader.
        bounds += [f"≤ {meta.le}"] if meta.le is not None and meta.le < 2**53 - 1 else []
        bounds += [f"< {meta.lt}"] if meta.lt is not None else []
    return f" {', '.join(bounds)}" if bounds else ""


def _default_text(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    return "" if default in (None, (), {}) else _literal(default)


def _literal(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple) and any(isinstance(one, Struct) for one in value):
        return f"`{msgspec.json.format(msgspec.json.encode(value), indent=0).decode()}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _marks(key: str) -> str:
    later = any(key == prefix or key.startswith(f"{prefix}.") for prefix in WITHOUT_EFFECT)
    marks = {"*reload*": is_reloadable(key), "*later*": later}
    return ", ".join([f"*{change_of(key).value}*", *(word for word, holds in marks.items() if holds)])
