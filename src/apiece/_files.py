"""Writing files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from apiece.errors import DataError


def write_whole(path: Path, content: str | bytes) -> None:
    """Put `content` at `path` by a temporary sibling and a rename, so that no reader sees half.

    Raises `DataError` where the folder cannot be written to.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_new(path: Path, content: str | bytes) -> None:
    """As `write_whole`, but raise `DataError` where `path` already exists."""
    if path.exists():
        raise DataError(f"{path}: exists and is left untouched; give another name or remove it")
    write_whole(path, content)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
