"""The imports between rooms: one table, and no cycle.

The table is the architecture. If a room needs something that it may not import, pass it a value instead.
"""

from __future__ import annotations

import pytest

from tests.house.tree import (
    PRODUCT,
    ROOT,
    Import,
    cycle_in,
    graph_of,
    imports_of,
    is_standard,
    module_name,
    python_files,
    shown,
)

# room: (rooms it may import, packages it may import). msgspec, those of EVERYBODY are everybody's.
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "journal": (set(), {"google_crc32c", "blake3", "zstandard"}),
    "core": (set(), set()),
    "failpoints": (set(), set()),
    "run_files": (set(), set()),
    "signals": (set(), set()),
    "refusal": ({"core"}, set()),
    "boot": (set(), set()),
    "lifelines": (set(), set()),
    "processor_time": (set(), set()),
    "loop_files": (set(), {"aiofiles"}),
    "guards": ({"core"}, set()),
    "rate_functions": ({"core"}, set()),
    "imported": ({"core"}, set()),
    "channel": ({"core"}, set()),
    "config": ({"core"}, {"yaml"}),
    "attach": ({"core", "journal", "channel"}, set()),
    "strategy": ({"core", "imported", "leyline", "supervisor"}, set()),
    "storage": ({"core"}, {"blake3", "xxhash", "numpy"}),
    "leyline": ({"core"}, {"google.protobuf"}),
    "kernel": ({"core", "journal", "channel"}, set()),
    "supervisor": ({"attach", "core", "channel", "storage", "leyline", "loop_files"}, {"psutil", "pynvml"}),
    "trainer": (
        {"core", "guards", "imported", "rate_functions", "channel", "storage"},
        {"torch", "numpy", "blake3", "xxhash"},
    ),
    "telemetry": (
        {"core", "guards", "leyline", "loop_files"},
        {"structlog", "google.protobuf", "redis", "opentelemetry", "pynvml"},
    ),
    "control": ({"core", "journal", "storage", "loop_files"}, set()),
    "followers": ({"core", "journal", "forensics"}, {"google_crc32c", "mlflow", "wandb"}),
    "forensics": ({"core", "journal", "storage"}, {"aiofiles", "duckdb"}),
}
ROOTS = {"daemon", "library", "cli", "trainer.__main__", "attach.__main__", "__init__"}
# The bare package holds the version; its public names are lazy, and a room that used them would import a root.
EVERYBODY = {"boot", "failpoints", "lifelines", "processor_time", "refusal", "run_files", "signals", "__init__"}
# In one module only, because only it has the reason.
ALSO = {
    "journal.export": {"aiofiles"},  # runs inside the daemon's loop
}
# Inside functions of the trainer, because they may be absent: the data of tasks, and what an extra brings.
OPTIONAL = {"sklearn", "torchvision", "torchdata", "torch_pruning", "torchjd"}


def room_of(module: str) -> str:
    """Return the room of a module."""
    parts = module.split(".")
    if parts[0] == "journal":
        return "journal"
    if module in ("tolariad.trainer.__main__", "tolariad.attach.__main__"):
        return module.removeprefix("tolariad.")
    return parts[1] if len(parts) > 1 else "__init__"


def is_ours(name: str) -> bool:
    """Return whether an imported name is one of the two packages."""
    return name.split(".", maxsplit=1)[0] in PRODUCT


def is_within(name: str, packages: set[str]) -> bool:
    """Return whether a module is one of the packages or is inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def forbidden(module: str, found: Import) -> str | None:
    """Return why a module may not import this name, or None if it may."""
    room = room_of(module)
    if room in ROOTS or is_standard(found.name):
        return None
    rooms, packages = ROOMS[room]
    if is_ours(found.name):
        other = room_of(found.name)
        return None if other in {room, *rooms, *EVERYBODY} else f"{room} may not know {other}"
    if is_within(found.name, {"msgspec", *packages, *ALSO.get(module, set())}):
        return None
    if room == "trainer" and found.in_function and is_within(found.name, OPTIONAL):
        return None
    return f"{room} may not use {found.name}"


def test_every_module_lives_in_a_room_of_the_table():
    """A new room is an architectural decision, so it is added to the table first."""
    rooms = {module_name(path): room_of(module_name(path)) for path in python_files(*PRODUCT)}

    assert {module: room for module, room in rooms.items() if room not in {*ROOMS, *ROOTS}} == {}


def test_rooms_import_only_what_the_table_allows():
    """This covers every import of every module, relative ones and those inside functions too."""
    broken = [
        f"{shown(path, found.line)}: {reason}"
        for path in python_files(*PRODUCT)
        for found in imports_of(path)
        if (reason := forbidden(module_name(path), found))
    ]

    assert not broken, "\n".join(["", *broken])


@pytest.mark.parametrize(
    ("module", "name", "in_function", "allowed"),
    [
        ("tolariad.core.state.run", "torch", False, False),
        ("tolariad.core.state.run", "msgspec", False, True),
        ("tolariad.core.state.run", "json", False, True),
        ("tolariad.kernel.recorder", "journal.writer", False, True),
        ("tolariad.kernel.recorder", "tolariad.control.server", False, False),
        ("journal.reader", "tolariad.core.state.run_state", False, False),
        ("journal.export", "aiofiles", False, True),
        ("journal.reader", "aiofiles", False, False),
        ("tolariad.control.server", "tolariad.daemon", False, False),
        ("tolariad.trainer.tasks", "sklearn.datasets", False, False),
        ("tolariad.trainer.tasks", "sklearn.datasets", True, True),
        ("tolariad.storage.files", "tolariad.failpoints", False, True),
        ("tolariad.cli.tolaria", "tolariad.daemon", True, True),
        ("tolariad.trainer.loop", "torchaudio", False, False),
    ],
)
def test_the_table_is_read_as_it_is_meant(module, name, in_function, allowed):
    """The rule can refuse, so a clean tree has a meaning."""
    found = Import(name, 1, not in_function, in_function)

    assert (forbidden(module, found) is None) is allowed


def test_pure_core_takes_nothing_that_waits_or_wonders():
    """No clock, randomness, I/O or threads: events and inputs bring these values."""
    impure = {
        "asyncio",
        "os",
        "io",
        "pathlib",
        "random",
        "secrets",
        "socket",
        "subprocess",
        "threading",
        "time",
        "uuid",
    }
    core = [path for path in python_files("tolariad") if room_of(module_name(path)) == "core"]
    found = [
        f"{shown(path, one.line)}: {one.name}"
        for path in core
        for one in imports_of(path)
        if is_within(one.name, impure)
    ]

    assert core, "there is no core to look at"
    assert not found, "\n".join(["", *found])


def test_no_module_takes_part_in_an_import_cycle():
    """There is no cycle within or across rooms; imports for types, and inside functions, count too."""
    graph = graph_of(python_files(*PRODUCT))
    # The bare package is the front door: its public names are looked up when they are asked for.
    del graph["tolariad"]

    assert len(graph) > 300, "the whole product is checked"
    assert cycle_in(graph) == []


def test_a_cycle_is_found_where_there_is_one():
    """The search finds a cycle in a graph that has one, and none in another graph."""
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_nothing_at_the_top_level_becomes_a_package_by_accident():
    """Other projects have packages named `systemd` and `proto` too."""
    assert not any((ROOT / folder / "__init__.py").exists() for folder in ("systemd", "proto", "docs", "examples"))
