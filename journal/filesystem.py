"""The file systems on which a journal may be written: those whose promises about a synced write have been tested.

A network file system may lose a synced write with its server, and its locks with the network. A stacked file system
passes syncs on in its own way. Both are refused by name unless the caller allows them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from journal.errors import FileSystemRefused

# statfs(2)'s f_type, from linux/magic.h and the file systems' own headers.
UNTESTED: Final = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFE534D42: "smb2",
    0xFF534D42: "cifs",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x013111A8: "ibrix",
    0xAAD7AAEA: "panfs",
    0x786F4256: "vboxsf",
    0xBACBACBC: "vmhgfs",
    0x65735546: "fuse",
    0x794C7630: "overlay",
    0x61756673: "aufs",
    0xF15F: "ecryptfs",
    0x6A656A63: "virtiofs",
}
# f_type is the first field of struct statfs, as wide as a long on every Linux except s390. The rest is not read.
_STATFS_BYTES: Final = 256


def file_system_magic(path: Path) -> int:
    """Return the type of the file system that contains a path. Raises OSError."""
    import ctypes  # only a writer asks

    found = ctypes.create_string_buffer(_STATFS_BYTES)
    # os.statvfs has no f_type, and Python has no statfs, so the C library is called.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), found) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    # Magic numbers have 32 bits. On some machines the field is signed and wider, so the rest is masked.
    return ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF


def refuse_untested(folder: Path, magic: int) -> None:
    """Raise FileSystemRefused if a file system of this type has promises that nobody tested."""
    # A list of refused types and not of allowed ones: a new local file system should work without a new release.
    name = UNTESTED.get(magic)
    if name is None:
        return
    hint = (
        "Data that it reports as durable may still be lost with a server or a lower layer. Give a folder on a local "
        "disk, or set `journal.allow_filesystem: true`."
    )
    raise FileSystemRefused(
        f"a journal is not written on {name}, a network or stacked file system", path=folder, hint=hint
    )
