"""Convert nested mappings to `Settings`, and report all problems of a document at once.

Promises: a document becomes one valid `Settings`, or a ConfigError that lists every problem with its key and what to
do. Nothing is guessed, converted between types, or ignored.

msgspec could convert the whole document in one call, but it stops at the first problem and names an unknown key without
its section. So this module walks the sections and lets msgspec convert each value.
"""

from __future__ import annotations

import functools
import math
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from tolariad.core.calc.bounds import NAME_CHARACTERS_MAX, TEXT_CHARACTERS_MAX, shown, text_refusal
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.text.nearest import KEYS_ALIKE, did_you_mean, nearest

# Keys that users of torch try, and the key to use instead: rates and seed each have one place.
_MOVED = {
    "optimizer.lr": "learning_rate.base_lr",
    "optimizer.groups[].lr": "base_lr",
    "lr": "learning_rate.base_lr",
    "seed": "rng_seed",
}
# The words for the types in msgspec's messages.
_TYPE_WORDS = {"float": "a number", "int": "an integer", "str": "text", "bool": "true or false", "array": "a list"}
# Two keys of different sections share much of their path.
_PATHS_ALIKE = 0.75
S = TypeVar("S", bound=Struct)


class Problem(Struct, frozen=True, kw_only=True):
    """One problem: the dotted key, what is wrong, the nearest known name, and where (`run.yaml:12`, `--set KEY`)."""

    path: str
    what: str
    nearest: str | None = None
    where: str | None = None

    def __str__(self) -> str:
        """Return one line: place, key, problem, suggestion. A place that already names the key is enough."""
        place = f"{self.where}: " if self.where else ""
        hint = did_you_mean(self.nearest)
        names_key = self.where is not None and self.where.endswith(f" {self.path}")
        return f"{place}{self.path}: {self.what}{hint}" if self.path and not names_key else f"{place}{self.what}{hint}"


class ConfigError(Exception):
    """The configuration is invalid. `problems` holds every problem found; nothing was started or changed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


def read_settings(document: Mapping[str, Any], places: Mapping[str, str] | None = None) -> Settings:
    """Convert the mapping under `tolaria:` into Settings.

    `places` maps dotted keys to their places ("run.yaml:12"), as far as known. Raises ConfigError with all problems of
    names, types and ranges. `rules.check` checks the relations between values.
    """
    problems: list[Problem] = []
    settings = _read_struct(Settings, document, "", problems)
    if settings is None:
        known = places or {}
        raise ConfigError([msgspec.structs.replace(p, where=_place(p.path, known)) for p in problems])
    return settings


def known_keys() -> list[str]:
    """Return every dotted key of the configuration, each section before its keys."""
    return list(_keys_below(Settings, ""))


@functools.cache
def fields_of(kind: type[Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """Return a section's fields by name. Cached: resolving the annotations takes a millisecond."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


def section_of(kind: Any) -> type[Struct] | None:
    """Return the Struct of a field that is a section, without its annotation; None for a plain value.

    A section may be optional: null then is another value than the section with its defaults.
    """
    plain = _bare(kind)
    if _is_optional(plain):
        plain = next(part for part in typing.get_args(plain) if part is not type(None))
    return plain if isinstance(plain, type) and issubclass(plain, Struct) else None


def items_of(kind: Any) -> type[Struct] | None:
    """Return the Struct that a field's list or mapping holds; None for everything else."""
    plain = _bare(kind)
    arguments = typing.get_args(plain)
    if typing.get_origin(plain) not in {tuple, dict} or not arguments:
        return None
    return section_of(arguments[0] if typing.get_origin(plain) is tuple else arguments[-1])


def choices_of(kind: Any) -> list[str]:
    """Return the allowed words if a field is a choice between words, else an empty list.

    A field with further text beside its words names them all in `extra`.
    """
    while typing.get_origin(kind) is Annotated:
        kind, *metas = typing.get_args(kind)
        for meta in metas:
            if isinstance(meta, msgspec.Meta) and "choices" in (meta.extra or {}):
                return list((meta.extra or {})["choices"])
    plain = _bare(kind)
    if typing.get_origin(plain) is typing.Literal:
        return [word for word in typing.get_args(plain) if isinstance(word, str)]
    if typing.get_origin(plain) in {typing.Union, UnionType}:
        return [word for part in typing.get_args(plain) for word in choices_of(part)]
    return []


def is_secret(kind: Any) -> bool:
    """Return whether a field holds a reference to a secret."""
    if typing.get_origin(kind) is Annotated:
        inner, *metas = typing.get_args(kind)
        marked = any(isinstance(meta, msgspec.Meta) and (meta.extra or {}).get("secret") for meta in metas)
        return marked or is_secret(inner)
    return any(is_secret(part) for part in typing.get_args(kind))


def _bare(kind: Any) -> Any:
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    return kind


def _is_optional(plain: Any) -> bool:
    is_union = typing.get_origin(plain) in {typing.Union, UnionType}
    return is_union and type(None) in typing.get_args(plain)


class _Shape(NamedTuple):
    """The type of a field, taken apart for reading. `origin`: `tuple` or `dict` of a list or mapping."""

    kind: Any
    section: type[Struct] | None
    item: type[Struct] | None
    is_optional: bool
    origin: Any


@functools.cache
def _shapes_of(kind: type[Struct]) -> Mapping[str, _Shape]:
    """Return the shapes of a section's fields by name. Cached: taking the annotations apart takes most of a reading."""
    return {name: _shape_of(field.type) for name, field in fields_of(kind).items()}


def _shape_of(kind: Any) -> _Shape:
    plain = _bare(kind)
    return _Shape(kind, section_of(kind), items_of(kind), _is_optional(plain), typing.get_origin(plain))


def _read_struct(kind: type[S], raw: Any, path: str, problems: list[Problem]) -> S | None:
    if not isinstance(raw, Mapping):
        scalar = getattr(kind, "SCALAR", None)
        if scalar is None or isinstance(raw, list | tuple):
            problems.append(Problem(path=path, what=f"expected a mapping of keys, got {_name_of(raw)}"))
            return None
        raw = {scalar: raw}
    before = len(problems)
    fields, shapes = fields_of(kind), _shapes_of(kind)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        here = f"{path}.{key}" if path else str(key)
        if key in shapes:
            values[key] = _read_value(shapes[key], value, here, problems)
        else:
            problems.append(_unknown(str(key), here, list(fields)))
    problems.extend(
        Problem(path=f"{path}.{name}" if path else name, what="is required")
        for name, field in fields.items()
        if field.required and name not in raw
    )
    return kind(**values) if len(problems) == before else None


def _read_value(shape: _Shape, raw: Any, path: str, problems: list[Problem]) -> Any:
    if shape.section is not None:
        if raw is None and shape.is_optional:
            return None
        # An empty section is what is left if all its lines are commented out. It means the defaults.
        return _read_struct(shape.section, {} if raw is None else raw, path, problems)
    item = shape.item
    if item is None:
        return _read_leaf(shape.kind, raw, path, problems)
    names = map(str, raw) if isinstance(raw, Mapping) else ()
    if (what := _refused_text(names, NAME_CHARACTERS_MAX, "a name")) is not None:
        problems.append(Problem(path=path, what=what))
        return None
    if isinstance(raw, list | tuple) and shape.origin is tuple:
        return tuple(_read_struct(item, one, f"{path}[{n}]", problems) for n, one in enumerate(raw))
    if isinstance(raw, Mapping) and shape.origin is dict:
        return {str(name): _read_struct(item, one, f"{path}.{name}", problems) for name, one in raw.items()}
    return _read_leaf(shape.kind, raw, path, problems)


def _read_leaf(kind: Any, raw: Any, path: str, problems: list[Problem]) -> Any:
    numbers = raw.values() if isinstance(raw, Mapping) else (raw,)
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        problems.append(Problem(path=path, what=f"must be a finite number, got {shown(raw)}"))
        return None
    if (what := _refused_text(_texts(raw), TEXT_CHARACTERS_MAX, "the text")) is not None:
        problems.append(Problem(path=path, what=what))
        return None
    try:
        # A number as a key of a mapping is a text in JSON, and after `--set`.
        return msgspec.convert(raw, kind, str_keys=True)
    except (msgspec.ValidationError, ValueError) as error:
        # ValueError: msgspec cannot print a number of thousands of digits in its message.
        problems.append(_leaf_problem(kind, raw, path, str(error)))
        return None


def _texts(raw: Any) -> Iterator[str]:
    """Yield the texts of a value, including the names in a mapping."""
    if isinstance(raw, str):
        yield raw
    elif isinstance(raw, Mapping):
        yield from (text for pair in raw.items() for part in pair for text in _texts(part))
    elif isinstance(raw, list | tuple):
        yield from (text for part in raw for text in _texts(part))


def _refused_text(texts: Iterable[str], most: int, name: str) -> str | None:
    return next(filter(None, (text_refusal(text, most, name) for text in texts)), None)


def _leaf_problem(kind: Any, raw: Any, path: str, message: str) -> Problem:
    if is_secret(kind):
        # Do not repeat the value: it may be the secret itself.
        what = "must be a reference to the secret, not the secret itself: env:NAME, file:PATH or credential:NAME"
        return Problem(path=path, what=what)
    choices = choices_of(kind)
    if choices:
        given = shown(raw).strip("'")
        same = next((one for one in choices if one.lower() == given.lower()), None)
        what = f"must be one of {', '.join(choices)}, got {shown(raw)}"
        return Problem(path=path, what=what, nearest=same or nearest(given.lower(), choices))
    message = message.replace(" - at `key` in `$", " as each key - at `$")
    what, _, inner = message.partition(" - at `$")
    what = re.sub("`([a-z |]+)`", _type_words, what.partition(", got ")[0])
    return Problem(path=path + inner.rstrip("`"), what=f"{what[:1].lower()}{what[1:]}, got {shown(raw)}")


def _type_words(types: re.Match[str]) -> str:
    """Return msgspec's `int | null` as words."""
    return " or ".join(_TYPE_WORDS.get(one, one) for one in types[1].split(" | "))


def _unknown(key: str, path: str, siblings: list[str]) -> Problem:
    """Return the problem of an unknown key with the known one that was meant.

    That is the same name elsewhere, else a sibling that is spelt alike, else any key that is.
    """
    own_rate = "base_lr" if key == "lr" and path.startswith("optimizers.") else None
    moved = _MOVED.get(_without_indices(path), own_rate)
    if moved:
        return Problem(path=path, what=f"is not set here; use {moved}")
    everywhere = known_keys()
    namesakes = [name for name in everywhere if name.rsplit(".", 1)[-1] == key]
    if key in namesakes and "." in path:
        section = path.rpartition(".")[0]
        return Problem(path=path, what=f"unknown key; {key} is set at the top level, beside {section.split('.')[0]}")
    # Of several the one whose path is most like this one.
    meant = nearest(path, namesakes, 0.0) or nearest(key, siblings, KEYS_ALIKE)
    return Problem(path=path, what="unknown key", nearest=meant or nearest(path, everywhere, _PATHS_ALIKE))


def _keys_below(kind: type[Struct], prefix: str) -> Iterator[str]:
    for field in fields_of(kind).values():
        key = f"{prefix}{field.name}"
        yield key
        section = section_of(field.type)
        if section is not None:
            yield from _keys_below(section, f"{key}.")


def _without_indices(path: str) -> str:
    return "".join("[]" if part.isdigit() else part for part in path.replace("[", "\0").replace("]", "\0").split("\0"))


def _place(path: str, places: Mapping[str, str]) -> str | None:
    """Return the place of the key, or of the nearest section around it whose place is known."""
    while path and path not in places:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return places.get(path)


def _name_of(raw: Any) -> str:
    return "nothing" if raw is None else f"{type(raw).__name__} {shown(raw)}"
