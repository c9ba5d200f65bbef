"""Read the configuration: a YAML file or a mapping, and `--set key=value`, become one valid `Settings`.

Promises: YAML is read by the rules of YAML 1.2 (`off` is text, `3e-4` a number). No tag constructs an object. A
duplicate key is an error. Every error names file, line, key and the nearest known name (`ConfigError`; the commands
exit with 78).
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from tolariad.core.calc.bounds import shown
from tolariad.core.calc.settings.copies import SnapshotEvery
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.processes import TrainerSettings
from tolariad.core.calc.settings.reading import ConfigError, Problem, known_keys, read_settings
from tolariad.core.calc.settings.rules import check, with_implied_warmup
from tolariad.core.calc.settings.task_defaults import LIGHTNING, defaults_of, layer
from tolariad.core.calc.settings.values import Positive
from tolariad.core.calc.text.nearest import nearest
from tolariad.core.messages.vocabulary import EVENT_TYPES

CONFIG_BYTES_MAX: Final = 1 << 17
# The largest file without aliases has fewer values. With aliases, a few hundred bytes can expand to billions of values.
_VALUES_MAX: Final = CONFIG_BYTES_MAX
_TOP: Final = "tolaria"
_VARIABLE: Final = "TOLARIA__"
# By the name of the section, the schema of its short form.
_SHORT: Final[Mapping[str, Mapping[str, Any]]] = {
    SnapshotEvery.__name__: msgspec.json.schema(Positive),
    TrainerSettings.__name__: {"enum": ["process", "thread"]},
}


def load(
    source: str | Path | Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Read a configuration, add the task's defaults, the environment and `sets`, and check the result.

    `source` is the path of a YAML file, or a mapping with the key `tolaria` (None: only the others). `sets` are texts
    `key=value`: a dotted key and a value in YAML. `environ` may hold keys too (`from_environment`); `sets` come after
    them. Raises ConfigError with every problem found.

    The file of a task, strategy, blueprint or policy is relative to the folder of the YAML file that names it. In
    `sets` it is relative to the working folder. The result holds its absolute path, so that the run finds the same file
    wherever it is started again.
    """
    explicit, places = _read_source(source)
    if isinstance(source, str | Path):
        explicit = _with_anchors(explicit, Path(source).parent)
    for key, variable in from_environment(environ).items():
        _apply(explicit, places, key, environ[variable], variable)
    for text in sets:
        _apply_set(explicit, places, text)
    explicit = _with_anchors(explicit, Path())
    task = explicit.get("task")
    whole = layer(defaults_of(task if isinstance(task, str) else None), explicit)
    settings = read_settings(whole, places)
    section = explicit.get("learning_rate")
    if not isinstance(section, Mapping) or "warmup_epochs" not in section:
        settings = with_implied_warmup(settings)
    problems = [
        msgspec.structs.replace(p, where=places.get(p.path)) for p in (*check(settings), *_event_problems(settings))
    ]
    if problems:
        raise ConfigError(problems)
    return settings


def _event_problems(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each event to notify of that does not exist."""
    for name in settings.notify.events:
        if name not in EVENT_TYPES:
            what = f"no event has the name {shown(name)}; docs/events.md and `tolaria events` have the names"
            yield Problem(path="notify.events", what=what, nearest=nearest(name, EVENT_TYPES))


def from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the keys that the environment sets, each with its variable.

    `TOLARIA__learning_rate__base_lr=0.1` sets `learning_rate.base_lr`: two underscores stand for a dot.
    """
    named = sorted(variable for variable in environ if variable.startswith(_VARIABLE))
    return {variable.removeprefix(_VARIABLE).replace("__", "."): variable for variable in named}


def require_extras(settings: Settings) -> None:
    """Raise ConfigError if a package is missing that these settings need. Nothing is imported."""
    if settings.prune.enabled and importlib.util.find_spec("torch_pruning") is None:
        what = (
            "needs the package torch-pruning, which is not installed. Install it: pip install 'tolariad[pruning]'; or "
            "set the key to false"
        )
        raise ConfigError([Problem(path="prune.enabled", what=what)])


def _with_anchors(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the document with absolute paths in task, strategy, blueprints and the policies that are functions."""
    document = dict(document)
    if "task" in document:
        document["task"] = anchored(document["task"], folder)
    if "strategy" in document:
        document["strategy"] = anchored(document["strategy"], folder)
    if "learning_rate" in document:
        document["learning_rate"] = _with_policy(document["learning_rate"], folder)
    seeds = document.get("seeds")
    if isinstance(seeds, Mapping) and isinstance(names := seeds.get("blueprints"), list | tuple):
        document["seeds"] = seeds = {**seeds, "blueprints": [anchored(name, folder) for name in names]}
    if isinstance(seeds, Mapping) and "optimizer" in seeds:
        document["seeds"] = {**seeds, "optimizer": _with_policies(seeds["optimizer"], folder)}
    if "optimizer" in document:
        document["optimizer"] = _with_policies(document["optimizer"], folder)
    return document


def _with_policies(optimizer: Any, folder: Path) -> Any:
    if not isinstance(optimizer, Mapping) or not isinstance(groups := optimizer.get("groups"), list | tuple):
        return optimizer
    return {**optimizer, "groups": [_with_policy(group, folder) for group in groups]}


def _with_policy(section: Any, folder: Path) -> Any:
    if not isinstance(section, Mapping) or "policy" not in section:
        return section
    return {**section, "policy": anchored(section["policy"], folder)}


def anchored(task: Any, folder: Path) -> Any:
    """Return `file.py:Name` with an absolute path: in `folder` or, if it exists only there, in the working folder.

    So is `lightning:file.py:Name`. Anything else is returned unchanged.
    """
    if isinstance(task, str) and task.startswith(LIGHTNING):
        return LIGHTNING + anchored(task.removeprefix(LIGHTNING), folder)
    place, colon, name = task.rpartition(":") if isinstance(task, str) else ("", "", "")
    if not place.endswith(".py") or os.path.isabs(place):  # noqa: PTH117 - the text of a path
        return task
    here, there = (os.path.normpath(base.absolute() / place) for base in (folder, Path()))
    return (there if os.path.isfile(there) and not os.path.isfile(here) else here) + colon + name  # noqa: PTH113


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration document."""
    inner = _with_short_forms(msgspec.json.schema(Settings))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tolariad configuration",
        "type": "object",
        "properties": {_TOP: {"$ref": inner["$ref"]}},
        "required": [_TOP],
        "additionalProperties": False,
        "$defs": inner["$defs"],
    }


def _with_short_forms(schema: Any) -> Any:
    """Return the schema in which a section with a short form may be that instead: a value alone, or nothing."""
    if isinstance(schema, list):
        return [_with_short_forms(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    short = _SHORT.get(str(schema.get("$ref", "")).rpartition("/")[2])
    if short is None:
        return {key: _with_short_forms(value) for key, value in schema.items()}
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**rest, "anyOf": [{"$ref": schema["$ref"]}, short, {"type": "null"}]}


class _Loader(yaml.SafeLoader):
    """SafeLoader with the plain scalars of YAML 1.2. Dates stay text:

    PyYAML would turn versions and times into objects.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  PyYAML's interface


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | str:
    text = str(loader.construct_scalar(node))
    try:
        # PyYAML's own constructor would read 010 as octal.
        return int(text)
    except ValueError:
        # Python refuses thousands of digits. Return text: the check of the key's type then reports it.
        return text


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def _problem(what: str, where: str | None, path: str = "") -> ConfigError:
    return ConfigError([Problem(path=path, what=what, where=where)])


def _read_source(source: str | Path | Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the mapping under `tolaria`, and the place of each key."""
    if source is None:
        return {}, {}
    if isinstance(source, Mapping):
        return _under_top(source, None), {}
    path = Path(source)
    text = _read_text(path)
    document, places = _parse(text, str(path))
    return _under_top(document, str(path)), places


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(CONFIG_BYTES_MAX + 1)
        if len(raw) > CONFIG_BYTES_MAX:
            raise _problem(f"is larger than {CONFIG_BYTES_MAX} bytes, the limit for a configuration", str(path))
        return raw.decode("utf-8")
    except OSError as error:
        # What a person types who knows other tools' overrides.
        more = f"; to set a key, give --set {path}" if "=" in path.name else ""
        raise _problem(f"cannot be read: {error.strerror or error}{more}", str(path)) from error
    except UnicodeDecodeError as error:
        raise _problem(f"is not valid UTF-8 at byte {error.start}", str(path)) from error


def _parse(text: str, where: str) -> tuple[Any, dict[str, str]]:
    """Parse one YAML document into plain values and the place of every key below `tolaria`."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, {}
        places: dict[str, str] = {}
        _KeyLines(where, places).note(root, "")
        return loader.construct_document(root), places
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}" if mark else where
        raise _problem(f"is not valid YAML: {error.problem or error.context}", place) from error
    except yaml.YAMLError as error:
        raise _problem(f"is not valid YAML: {error}", where) from error
    except RecursionError as error:
        what = "cannot be parsed: it is nested too deeply, or an alias refers to a value that contains it"
        raise _problem(what, where) from error
    except ValueError as error:
        raise _problem(f"cannot be parsed: {error}", where) from error
    finally:
        loader.dispose()


class _KeyLines:
    """Finds the line of every key. Refuses duplicate keys, of which PyYAML would keep the last, and too many values.

    A value counts once for each alias that refers to it. So the walk ends before PyYAML would build billions of values.
    """

    def __init__(self, where: str, places: dict[str, str]) -> None:
        self._where = where
        self._places = places
        self._values = 0

    def note(self, node: yaml.Node, path: str) -> None:
        """Walk `node` at `path` and all nodes below it. Raises ConfigError."""
        self._values += 1
        if self._values > _VALUES_MAX:
            what = f"has more than {_VALUES_MAX} values, with aliases expanded; that is the limit for a configuration"
            raise _problem(what, self._where)
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._put(f"{path}[{number}]", item)
                self.note(item, f"{path}[{number}]")
        elif isinstance(node, yaml.MappingNode):
            seen: dict[Hashable, int] = {}
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in seen and name != "<<":
                    what = f"is a duplicate key; the first one is in line {seen[name]}"
                    place = f"{self._where}:{line}"
                    raise _problem(what, place, _below_top(f"{path}.{name}"))
                seen[name] = line
                self._put(f"{path}.{name}", key)
                self.note(value, f"{path}.{name}")

    def _put(self, path: str, node: yaml.Node) -> None:
        self._places[_below_top(path)] = f"{self._where}:{node.start_mark.line + 1}"


def _below_top(path: str) -> str:
    """Return the key without the leading dot and without `tolaria`, as the settings name it."""
    bare = path.removeprefix(".")
    return bare.removeprefix(f"{_TOP}.")


def _under_top(document: Any, where: str | None) -> dict[str, Any]:
    if not isinstance(document, Mapping) or _TOP not in document:
        what = f"must be a mapping with the single key `{_TOP}:`, and all other keys below it"
        raise _problem(what, where)
    others = [str(key) for key in document if key != _TOP]
    if others:
        known = [key for key in others if key in known_keys()]
        what = f"is beside `{_TOP}:`; {'indent it below that key' if known else 'no other key is allowed there'}"
        raise ConfigError([Problem(path=key, what=what, where=where) for key in others])
    inner = document[_TOP]
    if inner is not None and not isinstance(inner, Mapping):
        raise ConfigError([Problem(path=_TOP, what="must be a mapping of keys", where=where)])
    return dict(inner or {})


def _apply_set(explicit: dict[str, Any], places: dict[str, str], text: str) -> None:
    """Set one `key=value` in the explicit keys."""
    key, equals, raw = text.partition("=")
    key = key.strip().removeprefix(f"{_TOP}.")
    where = f"--set {key}"
    if not equals or not all(key.split(".")):
        raise _problem("must be key=value, such as learning_rate.base_lr=3e-4", where)
    _apply(explicit, places, key, raw, where)


def _apply(explicit: dict[str, Any], places: dict[str, str], key: str, raw: str, where: str) -> None:
    """Set one key to a value in YAML. `where`: what set it, for errors."""
    parts = key.split(".")
    if not all(parts):
        raise _problem("names no key: two underscores stand for a dot, as in TOLARIA__learning_rate__base_lr", where)
    value, _ = _parse(raw, where)
    section = explicit
    for depth, part in enumerate(parts[:-1], start=1):
        below = section.get(part)
        if below is not None and not isinstance(below, Mapping):
            what = "is not a section, so no key below it can be set"
            raise _problem(what, where, ".".join(parts[:depth]))
        section[part] = section = dict(below or {})
        places.setdefault(".".join(parts[:depth]), where)
    section[parts[-1]] = value
    places[".".join(parts)] = where
