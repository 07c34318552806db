"""Secrets on disk: files of a checkpoint are their owner's alone, whatever was planted before."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from apiece.errors import StateError
from apiece.training.checkpoints import CheckpointFolder, Journal, write_atomically
from apiece.training.identity import identity_of
from apiece.training.randomness import KEY_BYTES
from tests.strange_paths import STRANGE, look, plant

KEY = bytes(range(KEY_BYTES))
SECOND = f".apiece-{hashlib.sha256(b'key').hexdigest()[:16]}.new"  # of a file that is replaced
STATE = {"step": 0, "finished": False}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def planted(kind: str, at: Path, elsewhere: Path) -> None:
    if kind == "wide file":
        at.write_bytes(b"old")
        at.chmod(0o666)
    elif kind == "link":
        elsewhere.write_bytes(b"theirs")
        at.symlink_to(elsewhere)
    elif kind == "link to nowhere":
        at.symlink_to(elsewhere)
    elif kind == "directory":
        at.mkdir()


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("kind", ["nothing", "wide file", "link", "link to nowhere", "directory"])
@pytest.mark.parametrize("name", ["key", SECOND])
def test_whatever_was_planted(tmp_path: Path, kind: str, name: str) -> None:
    """The secret ends up in a file of mode 0600 at its place, or nowhere."""
    folder, elsewhere = tmp_path / "f", tmp_path / "elsewhere"
    os.mkdir(folder)  # noqa: PTH102
    folder.chmod(0o700)
    planted(kind, folder / name, elsewhere)
    try:
        write_atomically(folder / "key", KEY)
    except StateError:
        assert kind == "directory" or (kind.startswith("link") and name == "key")
    else:
        assert (folder / "key").read_bytes() == KEY
        assert not (folder / "key").is_symlink()
        assert mode(folder / "key") == 0o600
    if elsewhere.exists():
        assert elsewhere.read_bytes() == b"theirs"
    left = [p for p in folder.iterdir() if p.is_file() and p.name != "key"]
    assert left == []


def test_a_folder_is_made_for_its_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        CheckpointFolder(tmp_path / "a" / "run").save(STATE, KEY)
        Journal(tmp_path / "b" / "journal")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a" / "run") == 0o700
    assert {mode(p) for p in (tmp_path / "a" / "run").iterdir()} == {0o600}
    assert mode(tmp_path / "b" / "journal") == 0o600


def test_a_folder_that_others_write_to_or_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StateError, match="anyone can write"):
        CheckpointFolder(tmp_path / "open").save(STATE, KEY)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(StateError, match="is a link"):
        CheckpointFolder(tmp_path / "link").save(STATE, KEY)
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("how", ["link", "wide"])
def test_a_key_that_others_know_is_not_used(tmp_path: Path, how: str) -> None:
    """On resume too: who planted the key could take the noise off."""
    folder = CheckpointFolder(tmp_path / "run")
    folder.save(STATE, KEY)
    if how == "link":
        (tmp_path / "theirs").write_bytes(KEY)
        folder.key.unlink()
        folder.key.symlink_to(tmp_path / "theirs")
    else:
        folder.key.chmod(0o640)
    with pytest.raises(StateError, match="key"):
        folder.load()


def test_a_journal_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"")
    (tmp_path / "journal").symlink_to(tmp_path / "theirs")
    with pytest.raises(StateError, match="journal"):
        Journal(tmp_path / "journal")
    (tmp_path / "wide").write_bytes(b"")
    (tmp_path / "wide").chmod(0o666)
    with pytest.raises(StateError, match="others can write to the journal"):
        Journal(tmp_path / "wide")
    assert mode(tmp_path / "wide") == 0o666
    (tmp_path / "read").write_bytes(b"")
    (tmp_path / "read").chmod(0o644)
    Journal(tmp_path / "read")
    assert mode(tmp_path / "read") == 0o644


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ["journal", "key", "folder"])
def test_what_is_no_file_of_one_s_own_is_refused_and_stays(
    tmp_path: Path, name: str, kind: str
) -> None:
    if (name, kind) in (("folder", "folder"), ("key", "hard link")):
        return  # a folder is made for; zeros go over a key by all its names
    folder = tmp_path if name == "folder" else tmp_path / "run"
    folder.mkdir(exist_ok=True, mode=0o700)
    plant(kind, folder / name, KEY)
    before = look(tmp_path)
    calls = {
        "journal": [lambda: Journal(folder / "journal")],
        "key": [CheckpointFolder(folder).finish, lambda: CheckpointFolder(folder).save({}, KEY)],
        "folder": [lambda: CheckpointFolder(folder / "folder").save({}, KEY)],
    }
    for call in calls[name]:
        with pytest.raises(StateError):
            call()
        assert look(tmp_path) == before


class Listed(nn.Module):
    """A model that asks whether its class is in a set, which holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.layer(x)
        return value if type(self) in KNOWN else -value


KNOWN = {Listed, nn.Linear, "a", "b"}


def test_a_set_that_holds_what_reads_it_has_an_end() -> None:
    """The digest of a model is one whatever order its process gives to sets."""
    model = Listed()
    first, second = (identity_of(model, bytes(16), model=model) for _ in range(2))
    assert first == second
    KNOWN.add("c")
    try:
        assert identity_of(model, bytes(16), model=model) != first
    finally:
        KNOWN.remove("c")


class Scaled:
    """A loss whose setting is in a slot, and goes by another name outside of its class."""

    __slots__ = ("__factor",)

    def __init__(self, factor: float) -> None:
        self.__factor = factor

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.__factor * (outputs[:, 0] - targets)


def test_what_is_in_a_private_slot_counts() -> None:
    model = nn.Linear(3, 2)
    one, same, other = (identity_of(Scaled(f), bytes(16), model=model) for f in (1.0, 1.0, 2.0))
    assert one == same != other
