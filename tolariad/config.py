"""Where the configuration comes in: a YAML file, a mapping, and `--set key=value`, to one valid `Settings`.

Promises: YAML is read as YAML 1.2 reads it (`off` is a word, `3e-4` a number), no tag constructs anything, a key that
stands twice is an error, and every complaint names file, line, key and the nearest known name (`ConfigError`, which the
commands turn into exit code 78). It must not know: what the values are used for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from tolariad.core.settings.model import Settings
from tolariad.core.settings.reading import ConfigError, Problem, known_keys, read_settings
from tolariad.core.settings.rules import (
    check,
    difference,
    is_reloadable,
    read_resolved,
    require_task,
    resolved_json,
    warmup_note,
    without_effect,
)
from tolariad.core.settings.task_defaults import defaults_of, layer

__all__ = [
    "CONFIG_BYTES_MAX",
    "ConfigError",
    "Problem",
    "Settings",
    "anchored",
    "difference",
    "is_reloadable",
    "load",
    "read_resolved",
    "read_settings",
    "require_task",
    "resolved_json",
    "schema",
    "warmup_note",
    "without_effect",
]

CONFIG_BYTES_MAX: Final = 1 << 17
# A file of the most bytes without an alias stays below it; with aliases a few hundred bytes expand to billions of values.
_VALUES_MAX: Final = CONFIG_BYTES_MAX
_TOP: Final = "tolaria"


def load(source: str | Path | Mapping[str, Any] | None = None, sets: Iterable[str] = ()) -> Settings:
    """Read a configuration and make it whole: task defaults under it, `--set` over it, all of it checked.

    `source` is a YAML file's path, or a mapping with the key `tolaria` (None: only `sets`). `sets` are `key=value` texts,
    the key dotted, the value YAML. Raises ConfigError with every problem found.

    A task's file counts from the folder of the YAML file that names it, in `sets` from the working folder; it comes out
    as an absolute path, so that the run means the same file wherever it is started again.
    """
    explicit, places = _read_source(source)
    if "task" in explicit and isinstance(source, str | Path):
        explicit["task"] = anchored(explicit["task"], Path(source).parent)
    for text in sets:
        _apply_set(explicit, places, text)
    if "task" in explicit:
        explicit["task"] = anchored(explicit["task"], Path())
    task = explicit.get("task")
    whole = layer(defaults_of(task if isinstance(task, str) else None), explicit)
    settings = read_settings(whole, places)
    problems = [msgspec.structs.replace(p, where=places.get(p.path)) for p in check(settings)]
    if problems:
        raise ConfigError(problems)
    return settings


def anchored(task: Any, folder: Path) -> Any:
    """`file.py:Name` with an absolute path: of the file in `folder`, or, where only that is there, in the working folder.

    Anything else is given back as it is.
    """
    place, colon, name = task.rpartition(":") if isinstance(task, str) else ("", "", "")
    if not place.endswith(".py") or os.path.isabs(place):  # noqa: PTH117 - the text of a path
        return task
    here, there = (os.path.normpath(base.absolute() / place) for base in (folder, Path()))
    return (there if os.path.isfile(there) and not os.path.isfile(here) else here) + colon + name  # noqa: PTH113


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration document."""
    inner = msgspec.json.schema(Settings)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tolariad configuration",
        "type": "object",
        "properties": {_TOP: {"$ref": inner["$ref"]}},
        "required": [_TOP],
        "additionalProperties": False,
        "$defs": inner["$defs"],
    }


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's plain scalars, and without its dates, which turn versions and times into objects."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  PyYAML's own interface


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
        # PyYAML's own would read 010 as octal eight.
        return int(text)
    except ValueError:
        # Thousands of digits: no number to Python, so a text, which is refused by the key that wants a number.
        return text


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def _read_source(source: str | Path | Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what stands under `tolaria`, and where each key stands."""
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
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise ConfigError([Problem(path="", what=what, where=str(path))]) from error
    if len(raw) > CONFIG_BYTES_MAX:
        what = f"is larger than {CONFIG_BYTES_MAX} bytes; a configuration is not"
        raise ConfigError([Problem(path="", what=what, where=str(path))])
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 at byte {error.start}"
        raise ConfigError([Problem(path="", what=what, where=str(path))]) from error


def _parse(text: str, where: str) -> tuple[Any, dict[str, str]]:
    """Parse one YAML document into plain values and the place of every key below `tolaria`."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, {}
        places: dict[str, str] = {}
        _Places(where, places).note(root, "")
        return loader.construct_document(root), places
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}" if mark else where
        what = f"is not YAML: {error.problem or error.context}"
        raise ConfigError([Problem(path="", what=what, where=place)]) from error
    except yaml.YAMLError as error:
        raise ConfigError([Problem(path="", what=f"is not YAML: {error}", where=where)]) from error
    except RecursionError as error:
        what = "cannot be parsed: it is nested too deeply, or holds itself by an alias"
        raise ConfigError([Problem(path="", what=what, where=where)]) from error
    except ValueError as error:
        raise ConfigError([Problem(path="", what=f"cannot be parsed: {error}", where=where)]) from error
    finally:
        loader.dispose()


class _Places:
    """The line of every key. Refuses a key that stands twice, of which PyYAML would keep the last, and too many values.

    A value that is referred to by an alias counts as often as it is referred to: this walk ends before the one that would
    make a billion values of it.
    """

    def __init__(self, where: str, places: dict[str, str]) -> None:
        self._where = where
        self._places = places
        self._values = 0

    def note(self, node: yaml.Node, path: str) -> None:
        """Walk `node`, which stands at `path`, and all below it. Raises ConfigError."""
        self._values += 1
        if self._values > _VALUES_MAX:
            what = f"has more than {_VALUES_MAX} values, aliases written out; a configuration does not"
            raise ConfigError([Problem(path="", what=what, where=self._where)])
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._put(f"{path}[{number}]", item)
                self.note(item, f"{path}[{number}]")
        elif isinstance(node, yaml.MappingNode):
            seen: dict[Hashable, int] = {}
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in seen and name != "<<":
                    what = f"stands twice, first in line {seen[name]}"
                    place = f"{self._where}:{line}"
                    raise ConfigError([Problem(path=_below_top(f"{path}.{name}"), what=what, where=place)])
                seen[name] = line
                self._put(f"{path}.{name}", key)
                self.note(value, f"{path}.{name}")

    def _put(self, path: str, node: yaml.Node) -> None:
        self._places[_below_top(path)] = f"{self._where}:{node.start_mark.line + 1}"


def _below_top(path: str) -> str:
    """Name a key as the settings do: without the leading dot and without `tolaria`."""
    bare = path.removeprefix(".")
    return bare.removeprefix(f"{_TOP}.")


def _under_top(document: Any, where: str | None) -> dict[str, Any]:
    if not isinstance(document, Mapping) or _TOP not in document:
        what = f"must be a mapping with the one key `{_TOP}:`, and everything else below it"
        raise ConfigError([Problem(path="", what=what, where=where)])
    others = [str(key) for key in document if key != _TOP]
    if others:
        known = [key for key in others if key in known_keys()]
        what = f"stands beside `{_TOP}:`; {'indent it below that key' if known else 'only that key is known here'}"
        raise ConfigError([Problem(path=key, what=what, where=where) for key in others])
    inner = document[_TOP]
    if inner is not None and not isinstance(inner, Mapping):
        raise ConfigError([Problem(path=_TOP, what="must be a mapping of keys", where=where)])
    return dict(inner or {})


def _apply_set(explicit: dict[str, Any], places: dict[str, str], text: str) -> None:
    """Lay one `key=value` over the explicit keys."""
    where = f"--set {text.partition('=')[0]}"
    key, equals, raw = text.partition("=")
    parts = key.strip().removeprefix(f"{_TOP}.").split(".")
    if not equals or not all(parts):
        raise ConfigError([Problem(path="", what="must be key=value, such as learning_rate.base_lr=3e-4", where=where)])
    value, _ = _parse(raw, where)
    section = explicit
    for depth, part in enumerate(parts[:-1], start=1):
        below = section.get(part)
        if below is not None and not isinstance(below, Mapping):
            what = "is not a section, so nothing can be set below it"
            raise ConfigError([Problem(path=".".join(parts[:depth]), what=what, where=where)])
        section[part] = section = dict(below or {})
        places.setdefault(".".join(parts[:depth]), where)
    section[parts[-1]] = value
    places[".".join(parts)] = where
