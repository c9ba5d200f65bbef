#!/bin/sh
# Guess: `from __future__ import annotations` makes a module with many msgspec Structs load faster, since no annotation
#   is evaluated; and what a Decoder needs of a Struct is in the .pyc, like the rest of the module.
# What happens: the first Decoder, convert or inspection of a Struct compiles and evaluates each of its annotations, as
#   text, in every process: nothing of that is kept on disk. 1 000 fields are 1 000 calls of compile() and take several
#   times as long as the whole decoder does without the import. A second Decoder of the same Struct compiles nothing.
#   A command that lives for a tenth of a second pays it each time. Without the import nothing is compiled.
# Instead: no such import in the modules that hold what is decoded; quote the few names that do not exist yet.
# Version: msgspec 0.22.0 with CPython 3.11.7. Source: msgspec/_utils.py (get_class_annotations), and the output below.
# Needs pip. Fails if the behaviour changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check msgspec==0.22.0
cat >"$folder/look.py" <<'LOOK'
import sys
import time
import types

import msgspec

STRUCTS, FIELDS = 20, 50
BODY = "import msgspec\n" + "".join(
    f"class S{n}(msgspec.Struct):\n" + "".join(f"    f{i}: int | None = None\n" for i in range(FIELDS))
    for n in range(STRUCTS)
)
compiled = [0]
sys.addaudithook(lambda event, _: compiled.__setitem__(0, compiled[0] + (event == "compile")))


def decoders(name, head):
    """Return how often compile() was called for the first and the second decoder of each Struct; print the times."""
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(head + BODY, name, "exec"), vars(module))
    counts = []
    for which in ("first", "second"):
        compiled[0], began = 0, time.perf_counter()
        for n in range(STRUCTS):
            msgspec.msgpack.Decoder(vars(module)[f"S{n}"])
        took = (time.perf_counter() - began) * 1e3
        counts.append(compiled[0])
        print(f"{name:10} {which:6} decoder of each of {STRUCTS} Structs: {compiled[0]:5} compiled, {took:6.2f} ms")
    return counts


print("python", sys.version.split()[0], "msgspec", msgspec.__version__)
found = decoders("postponed", "from __future__ import annotations\n"), decoders("values", "")
sys.exit(0 if found == ([STRUCTS * FIELDS, 0], [0, 0]) else "the behaviour has changed")
LOOK
"$folder/venv/bin/python" "$folder/look.py"
