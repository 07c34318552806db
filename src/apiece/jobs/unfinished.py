"""What a run keeps in its folder until it is done, so that it can be taken up again.

The folder `checkpoints` holds a checkpoint for every model begun, with the key of its noise, and
what the config does not say: the job's name, and the coins of a split that was drawn. All of it is
readable by its owner only, and deleted once the run's results are written.
"""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from apiece.errors import StateError
from apiece.jobs.config import Job, read_job
from apiece.training import CheckpointFolder, write_atomically


@dataclass(frozen=True, slots=True, repr=False)
class Unfinished:
    """The checkpoints of the run in `out`. coins: the seed of the split, where one is drawn."""

    out: Path
    coins: int

    @classmethod
    def fresh(cls, job: Job, out: Path) -> Unfinished:
        """Return the place for a new run's checkpoints; nothing is written."""
        return cls(out, secrets.randbits(128) if job.run.seed is None else job.run.seed)

    @property
    def folder(self) -> Path:
        """Where everything is."""
        return self.out / "checkpoints"

    @property
    def _note(self) -> Path:
        return self.folder / "job.json"

    def begin(self, job: Job) -> None:
        """Make the folder, and note what the config does not say."""
        self.folder.mkdir(mode=0o700)
        note = {"name": job.name, "coins": self.coins}
        write_atomically(self._note, json.dumps(note).encode())

    def model(self, strategy: str, repeat: int) -> Path:
        """Return the folder of one model's checkpoint."""
        return self.folder / f"{strategy}-{repeat + 1}"

    def made(self) -> int:
        """Return how many steps the checkpoints hold, all models together."""
        states = [CheckpointFolder(path.parent).state for path in self.folder.glob("*/state.pt")]
        return sum(int(torch.load(path, weights_only=True)["step"]) for path in states)

    def clear(self) -> None:
        """Delete what makes it a run to be resumed, then the keys, then everything."""
        self._note.unlink(missing_ok=True)
        for path in self.folder.glob("*/key"):
            CheckpointFolder(path.parent).finish()
        shutil.rmtree(self.folder)


def reopen(out: Path, *, ledger: str | None = None) -> tuple[Job, Unfinished]:
    """Return the job of an interrupted run folder, and its checkpoints.

    ledger: its URL, where that has a password, which a run folder does not keep. Raises
    `StateError` where `out` is no run folder or its run was finished.
    """
    note = out / "checkpoints" / "job.json"
    if not note.is_file():
        why = "was finished" if (out / "metrics.json").exists() else "is no interrupted run"
        raise StateError(f"{out}: {why}; --resume takes the folder of a run that was interrupted")
    kept = json.loads(note.read_text())
    changes = {} if ledger is None else {"ledger": ledger}
    job = read_job(out / "config.toml", changes)
    job = replace(job, name=kept["name"], run=replace(job.run, out=str(out)))
    return job, Unfinished(out, int(kept["coins"]))
