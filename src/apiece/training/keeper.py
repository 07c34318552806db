"""Saving and resuming a run: when its checkpoints are written, and what must be the same again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from apiece._types import State
from apiece.errors import InputError, StateError
from apiece.plan import Plan
from apiece.training.checkpoints import Folder, Journal
from apiece.training.fully_sharded import gathered, spread, spread_updates
from apiece.training.identity import identity_of
from apiece.training.loop import Loop
from apiece.training.randomness import Streams

Fingerprint = Callable[[Streams], str]  # of the records and their groups, by the run's own key


class Keeper:
    """The checkpoints of one loop that runs a plan.

    Args:
        loop: What is saved; its updates are noted in the folder's journal from now on.
        streams: Whose key is saved with it.
        plan: What is run; with its last step the key of the randomness is deleted.
        fingerprint: Keyed hash of the records and their groups.
        makes: What else decides the updates, by the names that messages give it.
        folder: For the checkpoints; None keeps none until `save` is given one.
        every: Steps between two checkpoints.

    Raises:
        StateError: Where the folder holds a checkpoint already.

    Guarantee:
        A first checkpoint comes before the first update, and no step is released twice with
        different noise, however often the run is killed and resumed.
    """

    def __init__(
        self,
        loop: Loop,
        streams: Streams,
        *,
        plan: Plan,
        fingerprint: Fingerprint,
        makes: Mapping[str, Any],
        folder: Path | None,
        every: int,
    ) -> None:
        self._loop, self._streams, self._plan = loop, streams, plan
        self._fingerprint, self._every, self._makes = fingerprint, every, makes
        self._data: str | None = None  # the fingerprint, once it is known
        self._identity: dict[str, str] | None = None  # of what else decides the updates
        self._journal: Journal | None = None
        self._folder = None if folder is None else Folder(folder)
        self._begun, self._finished = False, False
        loop.journal = self._note
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
        """Return what makes the updates, digested: as it is before the first step from here."""
        if self._identity is None:
            key, model = self._streams.derive("identity", 0), self._loop.sums.model
            made = {name: identity_of(it, key, model=model) for name, it in self._makes.items()}
            self._identity = made
        return self._identity

    def after_step(self) -> None:
        """Save, if it is time to."""
        if self._folder is not None and self._loop.step_number % self._every == 0:
            self.save()

    def after_fit(self) -> None:
        """Save; after the last step delete the key, so that noise can no longer be taken off."""
        if self._folder is None or self._finished:
            return
        self.save()
        if self._loop.step_number == self._plan.steps:
            self._finished = True
            if self._loop.processes.rank == 0:
                self._folder.finish()

    def save(self, folder: str | Path | None = None) -> Path:
        """Write a checkpoint, atomically, and return its folder; see `Trainer.save`."""
        place = self._folder or (None if folder is None else Folder(Path(folder)))
        if place is None:
            raise InputError("save: no folder; give one here or as Trainer(checkpoint=...)")
        if folder is not None and Path(folder) != place.path:
            raise InputError(f"save: folder {folder}, but the run's is {place.path}; leave it out")
        loop = self._loop
        loop.updates.check_whole(loop.step_number)
        self._folder, self._begun = place, True
        if not self._finished:
            first = loop.processes.rank == 0
            self._data = self._data or (self._fingerprint(self._streams) if first else None)
            loop.processes.settle()
            state = self._state()
            if first:
                place.save(state, self._streams.key)
        loop.processes.wait()
        return place.path

    def _state(self) -> State:
        loop = self._loop
        return {
            "step": loop.step_number,
            "finished": loop.step_number == self._plan.steps,
            "plan": self._plan.hash(),
            "data": self._data,
            "makes": self._identify(),
            "release": self._streams.release,
            "world": loop.processes.world,
            "rejected": loop.rejected,
            "model": gathered(loop.sums.model.state_dict()),
            "updates": gathered(loop.updates.state_dict()),
            "restarts": None if loop.restarts is None else loop.restarts.state_dict(),
        }

    def resume(self, folder: Folder, state: State, key: bytes | None) -> None:
        """Put the loop where a checkpoint left it.

        Args:
            folder: Of the checkpoint.
            state: What it holds.
            key: Of the run's randomness; None for a finished run.

        Raises:
            StateError: Where the checkpoint is of another run, by anything that decides its
                results.
        """
        loop = self._loop
        self._folder, self._begun, self._finished = folder, True, key is None
        if state["world"] != loop.processes.world:
            self._check_world(folder, state)
        own, kept = {"plan": self._plan.hash()}, {"plan": state["plan"]}
        if key is not None:
            self._streams = loop.streams = Streams(key, state["release"])
            own |= {"data": self._fingerprint(self._streams), **self._identify()}
            kept |= {"data": state["data"], **state["makes"]}
        for what in own | kept:
            if own.get(what) != kept.get(what):
                raise StateError(
                    f"checkpoint: its {what} is not the one given here, and its noise is for that "
                    "one alone; resume with all that the run began with, or start another run"
                )
        self._data, self._identity = state["data"], state["makes"]
        try:
            model = loop.sums.model
            model.load_state_dict(spread(state["model"], model.state_dict()))
        except RuntimeError as error:
            raise StateError(f"checkpoint: its model is another ({error})") from None
        loop.updates.load_state_dict(spread_updates(state["updates"], loop.updates.optimizer))
        if loop.restarts is not None:
            loop.restarts.load_state_dict(state["restarts"])
        loop.step_number = loop.updates.begun = int(state["step"])
        loop.rejected = int(state["rejected"])

    def _check_world(self, folder: Folder, state: State) -> None:
        """Raise `StateError` where another number of processes may not go on with the run.

        It draws other records. So no step that was made may be made again, with the same noise on
        another sum; and no coin that a record keeps for a whole stage may be tossed again.
        """
        if not self._finished and folder.was_copied(state):
            raise StateError(
                f"checkpoint: {folder.path} is a copy, and the run may go on in the first with the "
                f"same noise on other records; resume that one, or with {state['world']} processes"
            )
        began, step = f"the run's last number of processes, {state['world']}", int(state["step"])
        if any(stage.participation is not None for stage in self._plan.stages):
            raise StateError(
                f"checkpoint: the plan's records take part in whole stages; resume with {began}"
            )
        if not folder.journal.exists() or Journal(folder.journal).reaches(step):
            raise StateError(
                f"checkpoint: steps after its step {step} were made, and would be made again from "
                f"other records; resume with {began}, up to the next checkpoint (of each step with "
                "save_every=1)"
            )

    def _note(self, step: int, update: Iterable[torch.Tensor]) -> None:
        """Put a digest of the update in the journal, where there is a folder."""
        if self._folder is None:
            return
        if self._journal is None:
            self._journal = Journal(self._folder.journal)
        self._journal.record(step, update)
