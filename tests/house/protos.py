"""The messages to other subsystems: generate their code, and describe them.

`python -m tests.house.protos` (`make proto`) writes the generated code below tolariad/leyline/v1 again.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from tests.house.tree import ROOT

SOURCES = ROOT / "proto"
FILES = tuple(sorted(path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.proto")))
# Timestamp, Duration and Struct come with the compiler.
INCLUDED = Path(grpc_tools.__file__).parent / "_proto"


def compile_with(*options: str) -> None:
    """Run the compiler over all sources. Raises RuntimeError if it refuses one; it prints why."""
    command = ["protoc", f"-I{SOURCES}", f"-I{INCLUDED}", *options, *FILES]
    if (status := protoc.main(command)) != 0:
        raise RuntimeError(f"protoc ended with {status}")


def generate(folder: Path) -> None:
    """Write modules and stubs below `folder`, at the place of their package."""
    compile_with(f"--python_out={folder}", f"--pyi_out={folder}")


@functools.cache
def described() -> tuple[FileDescriptorProto, ...]:
    """Return the sources as descriptors, with comments."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "described"
        compile_with("--include_source_info", f"--descriptor_set_out={written}")
        return tuple(FileDescriptorSet.FromString(written.read_bytes()).file)


if __name__ == "__main__":
    generate(ROOT)
    for file in FILES:
        print(f"written: {file.removesuffix('.proto')}_pb2.py")
