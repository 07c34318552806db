"""Checkpoints: atomic, safe to load, and unable to release one step twice with different noise.

A checkpoint is a folder of three files, readable by their owner only. `key` has the key of all
randomness: it is what makes a resumed run bit-identical, and whoever has it can take the noise
off, so it is deleted when the last step is done. `state.pt` has the parameters, the optimizer and
the number of finished steps; the first is written before the first update. `journal` has a digest
of every noisy update, written before the update is applied: a step that is repeated after a kill
must come out the same, or the run stops.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import pickle
import stat
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from apiece._files import STATE, open_own, require_own_folder, write
from apiece._types import Integers, State
from apiece.errors import DataError, InputError, StateError, UnsupportedError
from apiece.plan import Plan
from apiece.training.identity import bytes_of, identity_of
from apiece.training.loop import Loop
from apiece.training.processes import gather_tensors, shard_tensors, shard_updates
from apiece.training.randomness import KEY_BYTES, Streams

# Version of a checkpoint's content; another one is refused.
FORMAT = 5

# Bytes of a step's digest in the journal.
_DIGEST_BYTES = 16


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`, for its owner only, whole or not at all.

    The file is new, with mode 0600 whatever the umask; a link, a folder or a device at `path` is
    refused. Raises `StateError` where that fails; the former file at `path` is then still there.
    """
    try:
        write(path, data, STATE)
    except DataError as error:
        raise StateError(f"{error}; make room or mend the folder, then resume the run") from None


def _make_private(folder: Path) -> None:
    """Make a folder for its owner only, or take one in which nobody else can put a file."""
    try:
        require_own_folder(folder)
    except DataError as error:
        raise StateError(str(error)) from None
    # The parent may be made as well; only the folder itself holds the key.
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Made with 0700 at once: between a wider mode and a chmod somebody could enter.
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if folder.is_dir() and folder.stat().st_mode & stat.S_IWOTH:
            raise StateError(
                f"{folder}: anyone can write to it, and could put their own key there; "
                f"chmod o-w it, or choose another folder"
            ) from None
    else:
        folder.chmod(0o700)  # whatever the umask


def _serialise(state: State, *, check: bool) -> bytes:
    """Return the state in torch's format; with `check`, only if torch loads it safely."""
    buffer = io.BytesIO()
    # Saved with the format's number, which is read before anything else is taken from the file.
    try:
        torch.save({"format": FORMAT, **state}, buffer)
        # What a safe load refuses is refused now, and not when the run is to be resumed.
        if check:
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError) as error:
        raise UnsupportedError(
            "checkpoint: optimizer, scheduler or model hold values that cannot be loaded safely "
            f"({str(error).splitlines()[0]}); keep to tensors, numbers, texts, lists and dicts"
        ) from None
    return buffer.getvalue()


class CheckpointFolder:
    """One checkpoint folder, which need not exist yet, and the paths of its three files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state.pt"
        self.key = path / "key"
        self.journal = path / "journal"

    def save(self, state: State, key: bytes) -> None:
        """Write the state, and before the first one the key.

        Raises `StateError` where the folder is another run's, or cannot be written to, and
        `UnsupportedError` where the state holds what a safe load would refuse.
        """
        _make_private(self.path)
        # Whether there is a state decides whether a key found there may be written over.
        is_first = not self.state.exists()
        _serialise(state, check=is_first)  # refused before a key is written
        # A key without a state and a journal is of a run that never began: nothing was made with
        # it.
        if is_first and not self.journal.exists():
            if self.key.exists() and self.key.stat().st_size != KEY_BYTES:
                raise StateError(f"{self.key}: is no key of a run; choose an empty folder")
            write_atomically(self.key, key)  # nothing was made with a key that has no state
        elif self._read_key() != key:
            raise StateError(
                f"{self.path}: holds the checkpoint of another run; resume that one, or choose an "
                "empty folder"
            )
        # The inode of the key tells this folder from its copies.
        data = _serialise({**state, "place": self.key.stat().st_ino}, check=is_first)
        # The key comes before the state: a state without a key could not be resumed.
        write_atomically(self.state, data)

    def was_copied(self, state: State) -> bool:
        """Return whether an unfinished run's state was written in another folder than this."""
        return bool(state["place"] != self.key.stat().st_ino)

    def load(self) -> tuple[State, bytes | None]:
        """Return the state, read with weights_only=True, and the key; None for a finished run."""
        if not self.state.is_file():
            raise StateError(f"{self.state}: no checkpoint there; start the run afresh")
        try:
            state: State = torch.load(self.state, weights_only=True, map_location="cpu")
        except Exception as error:  # a damaged file makes torch raise almost anything
            raise StateError(f"{self.state}: not a readable checkpoint ({error})") from None
        # Another format may hold the same names with other meanings.
        if state.get("format") != FORMAT:
            raise StateError(f"{self.state}: format {state.get('format')}, this reads {FORMAT}")
        key = self._read_key()
        if key is None and not state["finished"]:
            raise StateError(
                f"{self.key}: the key of the randomness is gone; a run without it would repeat "
                "steps with other noise: start the run afresh"
            )
        return state, key

    def _read_key(self) -> bytes | None:
        """Return the key of the run; None where there is no file, or zeros in it."""
        try:
            # No link is followed, and opening a pipe does not wait: what is no plain file is
            # refused below.
            descriptor = os.open(self.key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(
                f"{self.key}: cannot be read as the key of this run ({error.strerror}); "
                "start the run afresh"
            ) from None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            mode = stat.S_IMODE(status.st_mode)
            if not stat.S_ISREG(status.st_mode):
                raise StateError(f"{self.key}: is no file; start the run afresh")
            # The owner alone may have had it: with the key the noise can be subtracted.
            if status.st_uid != os.geteuid() or mode & 0o077:
                raise StateError(
                    f"{self.key}: the key is not its owner's alone (mode {mode:04o}), and whoever "
                    "has it can take the noise off; start the run afresh"
                )
            key = file.read()
        if len(key) != KEY_BYTES:
            raise StateError(f"{self.key}: {len(key)} bytes, must be {KEY_BYTES}")
        # Zeros are a key that `finish` has written over, and was killed before it could delete the
        # file.
        return key if any(key) else None

    def finish(self) -> None:
        """Delete the key, so that the noise can no longer be taken off.

        The file is overwritten with zeros first: another hard link to it would keep the key. Raises
        `StateError` where the file is no key of this run.
        """
        with contextlib.suppress(FileNotFoundError):  # deleted by an earlier call
            try:
                descriptor, _ = open_own(self.key, os.O_RDWR, one_name=False)
            except DataError as error:
                raise StateError(f"{error}; it is no key of this run") from None
            with os.fdopen(descriptor, "r+b") as file:
                # Overwritten and flushed to the disk before the name goes.
                file.write(bytes(os.fstat(descriptor).st_size))
                file.flush()
                os.fsync(descriptor)
            self.key.unlink()


class Journal:
    """A digest of the update released in each step; a step that is repeated must agree with it.

    No two different updates of one step are recorded, by whichever process and after whichever
    kill; an update is recorded before it is applied.
    """

    def __init__(self, path: Path) -> None:
        _make_private(path.parent)
        self.path = path
        self._open().close()  # a journal that cannot be opened is an error now, not in mid-run

    def _open(self) -> io.FileIO:
        try:
            descriptor, _ = open_own(self.path, os.O_RDWR | os.O_CREAT)
        except DataError as error:
            raise StateError(f"journal {error}") from None
        except OSError as error:
            raise StateError(
                f"{self.path}: the journal cannot be opened ({error.strerror})"
            ) from None
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        # A digest written by others could allow a second, different update of a step.
        if mode & 0o022:
            os.close(descriptor)
            raise StateError(
                f"{self.path}: others can write to the journal (mode {mode:04o}), and could let a "
                "step come out twice; chmod go-w it if nobody did, or start the run afresh"
            )
        return io.FileIO(descriptor, "r+")

    def record(self, step: int, update: Iterable[torch.Tensor]) -> None:
        """Record the noisy update of `step`, counted from 0, before it is applied.

        Raises `StateError` where the step was made before and came out differently.
        """
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)  # public, as the update itself is
        # In the order of the parameters, which is the same in each run of a model.
        for tensor in update:
            digest.update(bytes_of(tensor))
        new = digest.digest()
        # The lock covers look and write: two processes cannot both find the place empty.
        with self._open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # against a second process on this run
            old = os.pread(file.fileno(), _DIGEST_BYTES, step * _DIGEST_BYTES)
            # A hole in the file reads as zeros: such a step was not recorded.
            is_recorded = len(old) == _DIGEST_BYTES and old != bytes(_DIGEST_BYTES)
            if is_recorded and old != new:
                raise StateError(
                    f"{self.path}: step {step} was made before and now comes out differently; to "
                    "release both would give the noise away: resume with the same code, data, "
                    "precision, physical batch size and number of threads (once more, where "
                    "somebody has withdrawn just now), or start the run afresh"
                )
            # Written in place, at the step's own position, whatever the order of steps.
            os.pwrite(file.fileno(), new, step * _DIGEST_BYTES)

    @property
    def steps(self) -> int:
        """Number of steps that were made, the last maybe in part."""
        # A digest written in part counts: its step had been made.
        return -(-self.path.stat().st_size // _DIGEST_BYTES)


class Keeper:
    """The checkpoints of one loop that runs a plan, and what must be the same when it resumes.

    A first checkpoint comes before the first update, and no step is released twice with different
    noise, however often the run is killed and resumed. With the plan's last step the key of the
    randomness is deleted. Where somebody whom the loop samples has withdrawn since the checkpoint,
    no step is made again without them.

    groups: (n,) the group of each record, −1 for one that takes no part. folder: None writes no
    checkpoint until `save` is given one. every: steps between two checkpoints.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        plan: Plan,
        groups: Integers,
        folder: str | Path | None,
        every: int,
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._groups = groups
        self._every = every
        # Keyed digests, once they are known: of the data, and of all else that makes the updates.
        self._data: str | None = None
        self._identity: dict[str, str] | None = None
        self._journal: Journal | None = None
        self._folder = None if folder is None else CheckpointFolder(Path(folder))
        self._begun = False
        self._finished = False
        # Whether the run was ended before the plan's last step.
        self._stopped = False
        loop.journal = self._record
        if self._folder is not None and self._folder.state.exists():
            raise StateError(
                f"{self._folder.path}: holds a checkpoint already; use Trainer.resume, or another "
                "folder"
            )

    def before_step(self) -> None:
        """Save before anything is released, so that it can be made again."""
        self._identify()
        if self._folder is not None and not self._begun:
            self.save()

    def _identify(self) -> dict[str, str]:
        """Return keyed digests of what makes the updates, as it was before the first step."""
        if self._identity is None:
            # All that decides an update besides plan, data and randomness.
            sums = self._loop.sums
            unfreezing = self._loop.unfreezing
            makes = {
                "loss": sums.loss_fn,
                "model": sums.model,
                **self._loop.updates.settings,
                "schedule of unfreezing": None if unfreezing is None else unfreezing.schedule,
                "method": sums.method,
                "compiled": sums.compiled,
                "physical batch size": sums.width,
            }
            key = self._loop.streams.derive("identity", 0)
            # Digests of settings as they are before the first step: a run changes its model and
            # optimizer.
            self._identity = {
                name: identity_of(value, key, model=sums.model) for name, value in makes.items()
            }
        return self._identity

    def _fingerprint(self) -> str:
        """Return a keyed hash of the records, their groups and their persons, in their order."""
        key = self._loop.streams.derive("fingerprint", 0)
        # Groups decide rates and bounds; persons decide which rows are clipped together.
        arrays = [self._groups]
        people = self._loop.sums.people
        if people is not None:
            arrays += [people.rows, people.starts, np.array([people.most or 0])]
        content = b"".join(array.tobytes() for array in arrays)
        persons = hashlib.blake2b(content, key=key, digest_size=16)
        return self._loop.sums.source.fingerprint(key) + persons.hexdigest()

    def after_step(self) -> None:
        """Save, if it is time to; after the last step of the plan as `after_fit` does."""
        # The last step's checkpoint also deletes the key.
        if self._is_over:
            self.after_fit()
        elif self._folder is not None and self._loop.step_number % self._every == 0:
            self.save()

    def after_fit(self) -> None:
        """Save; after the last step delete the key, so that noise can no longer be taken off."""
        if self._folder is None or self._finished:
            return
        # The state that says "finished" is written before the key goes: a kill in between loses
        # nothing.
        self.save()
        if self._is_over:
            self._finished = True
            if self._loop.processes.rank == 0:
                self._folder.finish()

    @property
    def has_ended(self) -> bool:
        """Whether no further step may be taken."""
        return self._finished or self._stopped

    def stop(self) -> None:
        """End the run here; save, and delete the key."""
        self._stopped = True
        self.after_fit()

    @property
    def _is_over(self) -> bool:
        return self._stopped or self._loop.step_number == self._plan.steps

    def save(self, folder: str | Path | None = None) -> Path:
        """Write a checkpoint, atomically, and return its folder; see `Trainer.save`."""
        target = self._folder or (None if folder is None else CheckpointFolder(Path(folder)))
        if target is None:
            raise InputError("save: no folder; give one here or as Trainer(checkpoint=...)")
        if folder is not None and Path(folder) != target.path:
            raise InputError(f"save: folder {folder}, but the run's is {target.path}; leave it out")
        loop = self._loop
        # A half-made update must not become the state that a run goes on from.
        loop.updates.check_complete(loop.step_number)
        self._folder = target
        self._begun = True
        if not self._finished:
            writes = loop.processes.rank == 0
            # Hashed once a run, when the first checkpoint is written: reading all data takes time.
            if self._data is None and writes:
                self._data = self._fingerprint()
            loop.processes.reshard()
            # In all processes: sharded tensors are gathered by a collective.
            state = self._collect_state()
            if writes:
                target.save(state, loop.streams.key)
        # No process goes on before the file is there.
        loop.processes.wait()
        return target.path

    def _collect_state(self) -> State:
        """Return the content of a checkpoint; all processes must call it together."""
        loop = self._loop
        return {
            "step": loop.step_number,
            "finished": self._is_over,
            "plan": self._plan.hash(),
            "data": self._data,
            "makes": self._identify(),
            "release": loop.streams.release,
            "world": loop.processes.world,
            "rejected": loop.rejected,
            "withdrawn": self._digest_withdrawn(),
            "order": loop.sampler.digest_order(loop.step_number),
            "model": gather_tensors(loop.sums.model.state_dict()),
            "updates": gather_tensors(loop.updates.state_dict()),
            "restarts": None if loop.restarts is None else loop.restarts.state_dict(),
        }

    def resume(self, folder: CheckpointFolder, state: State, key: bytes | None) -> None:
        """Put the loop where a checkpoint left it; key: None for a finished run.

        Raises `StateError` where the checkpoint is of another run, by anything that decides its
        results.
        """
        loop = self._loop
        self._folder = folder
        self._begun = True
        self._finished = key is None
        # Another number of processes draws other shares of each batch.
        if state["world"] != loop.processes.world:
            self._check_world(folder, state)
        # The streams first: fingerprint and digests are keyed by them.
        if key is not None:
            loop.streams = Streams(key, state["release"])
        # Compared before anything of the model is changed: of a refused trainer it stays as it was.
        self._check_same_run(state)
        self._data = state["data"]
        self._identity = state["makes"]
        try:
            model = loop.sums.model
            model.load_state_dict(shard_tensors(state["model"], model.state_dict()))
        except RuntimeError as error:
            raise StateError(f"checkpoint: its model is another ({error})") from None
        loop.updates.load_state_dict(shard_updates(state["updates"], loop.updates.optimizer))
        if loop.restarts is not None:
            loop.restarts.load_state_dict(state["restarts"])
        # The order is gone through up to the checkpoint, so that its limits are counted again.
        if key is not None:
            self._check_order(state)
        step = int(state["step"]) if key is None else self._find_next_step(folder, state)
        loop.step_number = step
        # As many updates as steps: nothing was begun that is not in the state.
        loop.updates.begun = step
        loop.rejected = int(state["rejected"])

    def _check_order(self, state: State) -> None:
        """Raise `StateError` where the batches until the checkpoint were not in this order.

        Who took part in them would otherwise take part again, too soon or too often.
        """
        step = int(state["step"])
        if self._loop.sampler.digest_order(step) != state.get("order"):
            raise StateError(
                f"checkpoint: its {step} steps were made in another order of batches; give the "
                "run's own order, from its beginning"
            )

    def _check_same_run(self, state: State) -> None:
        """Raise `StateError` where the checkpoint is of another plan; or of other data or updates.

        Of a finished run only the plan is looked at: no noise can be used twice.
        """
        current = {"plan": self._plan.hash()}
        saved = {"plan": state["plan"]}
        if not self._finished:
            current |= {"data": self._fingerprint(), **self._identify()}
            saved |= {"data": state["data"], **state["makes"]}
        # Names that only one of both has differ as well.
        for name in current | saved:
            if current.get(name) != saved.get(name):
                raise StateError(
                    f"checkpoint: its {name} is not the one given here, and its noise is for that "
                    "one alone; resume with all that the run began with, or start another run"
                )

    def _digest_withdrawn(self) -> str:
        """Return a keyed digest of who has withdrawn by now."""
        withdrawn = np.flatnonzero(self._loop.sampler.find_withdrawn())
        key = self._loop.streams.derive("withdrawn", 0)
        return hashlib.blake2b(withdrawn.tobytes(), key=key, digest_size=16).hexdigest()

    def _find_next_step(self, folder: CheckpointFolder, state: State) -> int:
        """Return the step, counted from 0, with which a resumed run goes on.

        Where somebody withdrew since the checkpoint, no step that was made after it is made again:
        without them, under the same noise, it would give them away. Such a step stays made and
        paid, and the model loses its update.
        """
        processes = self._loop.processes
        saved = int(state["step"])
        step = saved
        withdrawn = self._digest_withdrawn()
        # A checkpoint without the entry is of a run from which nobody could withdraw.
        if state.get("withdrawn", withdrawn) != withdrawn:
            if folder.was_copied(state):
                raise StateError(
                    f"checkpoint: {folder.path} is a copy, somebody has withdrawn since, and the "
                    "first may have made steps with them under the same noise; resume that one"
                )
            # Behind all steps that the journal has: none of them is made again without who
            # withdrew.
            step = max(saved, Journal(folder.journal).steps)
        # All processes go on with the step of process 0.
        step = int.from_bytes(processes.share_key(step.to_bytes(8)))
        if step > saved and processes.rank == 0:
            warnings.warn(
                f"checkpoint: somebody withdrew after its step {saved}; the steps since, to "
                f"{step}, are paid and lost, and the run goes on with step {step + 1}",
                stacklevel=4,
            )
        return step

    def _check_world(self, folder: CheckpointFolder, state: State) -> None:
        """Raise `StateError` where another number of processes may not go on with the run.

        Such a run draws other records. So no step that was made may be made again, with the same
        noise on another sum; and no coin that a record keeps for a whole stage may be tossed again.
        """
        if not self._finished and folder.was_copied(state):
            raise StateError(
                f"checkpoint: {folder.path} is a copy, and the run may go on in the first with the "
                f"same noise on other records; resume that one, or with {state['world']} processes"
            )
        former = f"the run's last number of processes, {state['world']}"
        # Who joined a stage by a coin, or by dealt steps, was drawn by shares of the former number.
        if any(s.participation is not None or s.times is not None for s in self._plan.stages):
            raise StateError(
                f"checkpoint: the plan's records take part in whole stages; resume with {former}"
            )
        step = int(state["step"])
        # Without a journal it cannot be known whether steps were made after the checkpoint.
        if not folder.journal.exists() or Journal(folder.journal).steps > step:
            raise StateError(
                f"checkpoint: steps after its step {step} were made, and would be made again from "
                f"other records; resume with {former}, up to the next checkpoint (of each step "
                "with save_every=1)"
            )

    def _record(self, step: int, update: Iterable[torch.Tensor]) -> None:
        """Put a digest of the update in the journal, where there is a folder."""
        if self._folder is None:
            return
        # Opened at the first update: a run that only looks at a checkpoint leaves no file.
        if self._journal is None:
            self._journal = Journal(self._folder.journal)
        self._journal.record(step, update)
