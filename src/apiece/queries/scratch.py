"""Room on disk that only this user can enter, gone when the process ends, and when it is killed."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from functools import cache
from pathlib import Path
from typing import Final

# Waits until whoever started it is gone, however that came about.
_AFTERWARDS: Final = (
    "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
)


def folder() -> Path:
    """Return a folder that is not there yet, in a room of this process in TMPDIR.

    The room has mode 0700. It is removed at exit, and by a process that waits for this one to end
    where it is killed; only with the whole machine, or with both at once, it stays.
    """
    return _room(os.getpid()) / uuid.uuid4().hex


@cache
def _room(process: int) -> Path:
    """Make this process's room; a forked one has its own."""
    room = tempfile.mkdtemp(prefix="apiece-")
    quiet = subprocess.DEVNULL
    waiting = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _AFTERWARDS, room],
        stdin=subprocess.PIPE,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,  # a Ctrl-C is not for it
    )

    def leave() -> None:
        if os.getpid() == process:
            shutil.rmtree(room, ignore_errors=True)
            waiting.kill()
            waiting.wait()

    atexit.register(leave)
    return Path(room)
