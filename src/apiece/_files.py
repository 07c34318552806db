"""Writing files: one policy for every path that is written to, and no other way to write one.

An output never takes the place of an input, a device, a link or a file that is not of its own kind.
It is whole or not there: what is not finished has no name, so that a kill leaves nothing behind.

A file that grows or changes where it lies (a ledger, a head file, a journal, a log) is a regular
file of the process's own user, under one name. A path is looked at before it is opened, and again
through the descriptor; nobody's mode is changed but that of a file that was made here.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from apiece.errors import DataError

# Bytes at a file's start and end in which its mark is looked for.
_MARKED_BYTES: Final = 1 << 16

# Endings of the files that a database, and a ledger, has beside its own.
_SIDECARS: Final = ("-journal", "-wal", "-shm", "-head", ".head")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file that is written.

    name: with its article. endings: of the file's name; none where any will do. mark: bytes near
    the start or the end of each such file, by which apiece knows one that it may replace; without a
    mark none is replaced, and with an empty one any is. private: for the owner alone.
    """

    name: str
    endings: tuple[str, ...] = ()
    mark: bytes | None = None
    private: bool = False

    def check_ending(self, path: Path) -> None:
        """Raise `DataError` for a name that ends as the files of another format do."""
        if self.endings and path.suffix.lower() not in self.endings:
            raise DataError(
                f"{path}: ends in {path.suffix!r}; {self.name} is written: give a name ending in "
                + " or ".join(self.endings)
            )


# The kinds of files that apiece writes, each with a mark that only its own have.
PAGE: Final = Kind("a page", (".html", ".htm"), b'<meta name="generator" content="apiece">')
PLAN: Final = Kind("a plan", (".json",), b'{\n  "strategy": "')
FIGURE: Final = Kind("a figure", (".png", ".svg", ".pdf"), b"apiece figure")
EXPORT: Final = Kind("Parquet", (".parquet",), b"ledger export", private=True)
# The first bytes of a ledger's backup, in place of those of an SQLite file.
BACKUP: Final = Kind("a backup of a ledger", mark=b"apiece backup 1\0", private=True)
SCHEMA: Final = Kind("a schema", (".toml",))
# Messages about rows: a line a message, in JSON.
STEWARD_LOG: Final = Kind("a steward's log", mark=b'"apiece query"\n', private=True)
# State in a folder of its own, whose names are apiece's: replaced whatever its content is.
STATE: Final = Kind("a state", mark=b"", private=True)

# The files that the running command reads, which no output may be.
_INPUTS: ContextVar[tuple[Path, ...]] = ContextVar("inputs", default=())


def name_kind(mode: int) -> str | None:
    """Return the kind of a file by its mode, with its article; None for a regular file."""
    kinds = (
        (stat.S_ISREG, None),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a link"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    for has_kind, name in kinds:
        if has_kind(mode):
            return name
    return "a device"


def look_at(path: Path) -> os.stat_result | None:
    """Return the status of the file or link at a path, unopened; None where there is none."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise DataError(f"{path}: cannot be used ({reason})") from None


def require_regular(path: Path, status: os.stat_result | None) -> None:
    """Raise `DataError` where anything but a regular file lies at a path."""
    kind = None if status is None else name_kind(status.st_mode)
    if kind is None:
        return
    remedy = "give the name of a file"
    if kind == "a link":
        real = Path(os.path.realpath(path))
        if real.is_file():
            remedy = f"give the file that it leads to, {real}"
    raise DataError(f"{path}: is {kind}; {remedy}")


def require_owner(path: Path, status: os.stat_result | None) -> None:
    """Raise `DataError` where the file at a path belongs to another user."""
    if status is not None and status.st_uid != os.geteuid():
        raise DataError(
            f"{path}: belongs to another user (uid {status.st_uid}, this process has "
            f"{os.geteuid()}); it is left untouched, run as its owner or give another path"
        )


def require_own(path: Path, status: os.stat_result | None, *, one_name: bool = True) -> None:
    """Raise `DataError` for a file that must not be written to where it lies.

    No file, or a regular file of this user, passes; with one_name only under one name, as a copy
    that somebody has under a second one would change with it.
    """
    require_regular(path, status)
    require_owner(path, status)
    if one_name and status is not None and status.st_nlink > 1:
        raise DataError(
            f"{path}: has {status.st_nlink} names (hard links), and what has the others would "
            "change with it; give a copy of its own"
        )


def require_own_place(path: Path) -> None:
    """Raise `DataError` for a path where another user's file or folder, or a device, lies.

    For an output that may be a file or a folder; once it is known which, it is checked again.
    """
    status = look_at(path)
    if status is not None and name_kind(status.st_mode) != "a folder":
        require_regular(path, status)
    require_owner(path, status)


def require_own_folder(path: Path) -> None:
    """Raise `DataError` for a path where anything lies but a folder of this user."""
    status = look_at(path)
    if status is None:
        return
    kind = name_kind(status.st_mode)
    if kind != "a folder":
        raise DataError(f"{path}: is {kind or 'a file'}; give the name of a folder")
    require_owner(path, status)


def open_own(
    path: Path, flags: int, mode: int = 0o600, *, one_name: bool = True
) -> tuple[int, bool]:
    """Open a file to be written to where it lies; return its descriptor, and whether it is new.

    Raises `DataError` as `require_own`, before anything is opened, and `OSError`. With O_CREAT in
    `flags`, a file that is not there is made with this mode; one for its owner alone has it
    whatever the umask.
    """
    # A link is not followed, and a pipe does not block.
    safe = (flags & ~os.O_CREAT) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    status = look_at(path)
    require_own(path, status, one_name=one_name)
    if status is None and flags & os.O_CREAT:
        try:
            descriptor = os.open(path, safe | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:  # made by another process in this moment
            return open_own(path, flags & ~os.O_CREAT, mode, one_name=one_name)
        if not mode & 0o077:
            os.fchmod(descriptor, mode)
        return descriptor, True
    # The path may lead elsewhere by now: what was opened is looked at again, through the
    # descriptor.
    descriptor = os.open(path, safe)
    try:
        require_own(path, os.fstat(descriptor), one_name=one_name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, False


@contextlib.contextmanager
def reading(inputs: Iterable[Path]) -> Iterator[None]:
    """Guard these files, and those that a database has beside them, against outputs in the body."""
    token = _INPUTS.set((*_INPUTS.get(), *inputs))
    try:
        yield
    finally:
        _INPUTS.reset(token)


def check_output(path: str | Path, kind: Kind, inputs: Iterable[Path] = ()) -> Path:
    """Return the path if a file of this kind may be written there, or raise `DataError`.

    Refused are inputs (`inputs` and those of `reading`, by whatever name), a device, a pipe, a
    folder, a link, somebody else's file, a name that no file can have or that another format has,
    and an existing file of another kind.
    """
    target = Path(path)
    if not target.name or "\0" in str(target):
        raise DataError(f"{target}: is no name of a file; give one")
    try:
        status = target.lstat()
    except FileNotFoundError:
        status = None
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror})") from None
    _refuse_inputs(target, status, (*_INPUTS.get(), *inputs))
    require_regular(target, status)
    require_owner(target, status)
    if status is not None:
        _refuse_other_kinds(target, kind)
    kind.check_ending(target)
    return target


def _refuse_inputs(target: Path, status: os.stat_result | None, inputs: tuple[Path, ...]) -> None:
    """Raise `DataError` where the target is an input or a file beside it, by content or by name."""
    with contextlib.suppress(OSError):  # a link is followed: it may lead to an input
        status = target.stat()
    # Compared by path, for files that are not there yet, and by device and inode, for other names
    # of one file.
    real_target = Path(os.path.realpath(target))
    for source in inputs:
        real = Path(os.path.realpath(source))
        guarded = [real, *(real.with_name(real.name + ending) for ending in _SIDECARS)]
        if real_target in guarded or _is_any_of(status, guarded):
            raise DataError(
                f"{target}: is what is read ({source}), or kept beside it; give another name"
            )


def _is_any_of(status: os.stat_result | None, paths: Iterable[Path]) -> bool:
    """Return whether a file is one of those at the paths, under whatever name."""
    if status is None:
        return False
    for path in paths:
        with contextlib.suppress(OSError):
            # Device and inode: two names of one file are one file.
            if os.path.samestat(status, path.stat()):
                return True
    return False


def _refuse_other_kinds(target: Path, kind: Kind) -> None:
    """Raise `DataError` where the existing file is of another kind, or a run's plan."""
    if kind.mark == b"":
        return
    try:
        with target.open("rb") as file:
            # A mark stands near the start or, as in Parquet, near the end.
            content = file.read(_MARKED_BYTES)
            file.seek(max(target.stat().st_size - _MARKED_BYTES, 0))
            content += file.read(_MARKED_BYTES)
    except OSError as error:
        raise DataError(f"{target}: is there and cannot be read ({error.strerror})") from None
    if content and (kind.mark is None or kind.mark not in content):
        reason = "" if kind.mark is None else f" and is not {kind.name} that apiece wrote"
        raise DataError(
            f"{target}: exists{reason}; it is left untouched, give another name or remove it"
        )
    if kind is PLAN and (target.parent / "config.toml").exists():
        raise DataError(f"{target}: is a run's plan and stays as it is; give another name")


@contextlib.contextmanager
def writing(path: str | Path, kind: Kind, inputs: Iterable[Path] = ()) -> Iterator[IO[bytes]]:
    """Yield a file without a name, which is `path` once the body has ended, whole and on disk.

    Whatever ends the process before that leaves nothing. A former file of the kind stays until
    then, and lends its permissions where they are narrower. Raises `DataError` as `check_output`,
    and where the folder cannot be written to.
    """
    inputs = tuple(inputs)
    target = check_output(path, kind, inputs)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o600 if kind.private else 0o666
        with _open_nameless(target.parent, mode) as file:
            yield file
            file.flush()
            check_output(target, kind, inputs)  # again: somebody may have put a file there
            _give_name(file, target, mode)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror or error})") from None


def write(path: str | Path, content: str | bytes, kind: Kind, inputs: Iterable[Path] = ()) -> None:
    """Write `content` to `path`, as `writing` does."""
    with writing(path, kind, inputs) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def append(path: str | Path, line: str, kind: Kind) -> None:
    """Add a line to a file of this kind, which is made where there is none; raise as `writing`."""
    target = check_output(path, kind)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        descriptor, _ = open_own(target, flags, 0o600 if kind.private else 0o666)
        with os.fdopen(descriptor, "ab") as file:
            file.write(f"{line}\n".encode())
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror or error})") from None


def _open_nameless(folder: Path, mode: int) -> IO[bytes]:
    """Return a new file in the folder that no name leads to."""
    if hasattr(os, "O_TMPFILE"):
        try:
            # Without a name there is nothing that a kill could leave behind.
            return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, mode), "w+b")
        except OSError as error:  # a file system without such files
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
    return tempfile.TemporaryFile(dir=folder)


def _give_name(file: IO[bytes], target: Path, mode: int) -> None:
    """Give the file its name; until that moment the former file has it."""
    # To replace a file the new one needs a second name for a moment, always the same, under a lock:
    # a kill in that moment leaves a whole file, with the same rights, which the next output there
    # removes.
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()
    second_name = f".apiece-{digest[:16]}.new"
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(second_name, dir_fd=folder)
        # A link is made only where nothing has the name; a file that is there is replaced by a
        # rename, which is one step too.
        replaces = target.exists()
        if replaces:
            mode &= target.stat().st_mode
        if mode & 0o077 == 0:
            # A private file is private whatever the umask.
            os.fchmod(file.fileno(), mode)
        elif replaces:
            current_mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            os.fchmod(file.fileno(), current_mode & mode)
        os.fsync(file.fileno())
        if replaces or not _link(file, target.name, folder):
            try:
                if not _link(file, second_name, folder):
                    _copy(file, second_name, folder, mode)
                os.rename(second_name, target.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(second_name, dir_fd=folder)
                raise
        # The name is on the disk as well before the caller goes on.
        os.fsync(folder)
    finally:
        os.close(folder)


def _link(file: IO[bytes], name: str, folder: int) -> bool:
    """Give a file without a name this one; return False where the system cannot."""
    try:
        os.link(f"/proc/self/fd/{file.fileno()}", name, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True


def _copy(file: IO[bytes], name: str, folder: int, mode: int) -> None:
    """Copy a file that cannot be given a name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file.seek(0)
    with os.fdopen(os.open(name, flags, mode, dir_fd=folder), "wb") as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        os.fsync(copy.fileno())
