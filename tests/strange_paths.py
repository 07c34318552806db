"""What may lie at a path that a command is given, made in a folder of the test, and how it looks.

No real device is ever opened: a node of the same kind is made in the test's own folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

ANOTHER_USER = 54_321
# Of each: what a message says of it.
STRANGE = {
    "device": "is a device",
    "block device": "is a device",
    "pipe": "is a pipe",
    "socket": "is a socket",
    "folder": "is a folder",
    "link": "is a link",
    "link to nowhere": "is a link",
    "link to a device": "is a link",
    "hard link": r"has 2 names",
    "theirs": "belongs to another user",
}


def plant(kind: str, path: Path, content: bytes = b"") -> None:
    """Put something at a path; skip the test where the system does not permit it."""
    beside = path.with_name(f"{path.name}.aside")
    try:
        match kind:
            case "device":
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            case "block device":
                os.mknod(path, stat.S_IFBLK | 0o666, os.makedev(7, 200))
            case "pipe":
                os.mkfifo(path, 0o666)
            case "socket":
                made = path.parent / "s"
                with chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
                    server.bind(made.name)
                made.rename(path)
            case "folder":
                path.mkdir(mode=0o755)
            case "link":
                beside.write_bytes(content)
                path.symlink_to(beside)
            case "link to nowhere":
                path.symlink_to(path.with_name("nowhere"))
            case "link to a device":
                plant("device", beside)
                path.symlink_to(beside)
            case "hard link":
                beside.write_bytes(content)
                path.hardlink_to(beside)
            case "theirs":
                path.write_bytes(content)
                path.chmod(0o666)
                os.chown(path, ANOTHER_USER, ANOTHER_USER)
            case _:
                raise ValueError(kind)
    except PermissionError as error:
        pytest.skip(f"{kind}: this system does not let the test make one ({error.strerror})")


@contextlib.contextmanager
def chdir(folder: Path) -> Iterator[None]:
    """Work in a folder: the path of a socket has at most 107 bytes."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def look(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return mode, owner, device, names, time and content of everything in a folder, by name.

    Of folders the time is left out: a file without a name may have been made in them.
    """
    result: dict[str, tuple[object, ...]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        about = path.lstat()
        content: object = None
        if stat.S_ISREG(about.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(about.st_mode):
            content = str(path.readlink())
        time = None if stat.S_ISDIR(about.st_mode) else about.st_mtime_ns
        result[str(path.relative_to(folder))] = (
            oct(about.st_mode), about.st_uid, about.st_gid, about.st_rdev, time, content,
            None if stat.S_ISDIR(about.st_mode) else about.st_nlink,
        )  # fmt: skip
    return result
