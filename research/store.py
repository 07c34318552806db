"""Stored results: one JSON file an experiment, written whole after each unit that ran."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from apiece._files import Kind, write
from apiece.errors import DataError
from research.data import require_data
from research.experiment import Experiment, Folders, Outcome, Unit, unit_key
from research.machine import describe_machine

_RESULTS = Kind("results of an experiment", (".json",), b'{"experiment": ')


@dataclass(frozen=True, slots=True)
class Store:
    """The results of experiments in a folder.

    Attributes:
        folder: Its path.

    Example:
        >>> from pathlib import Path
        >>> from research.store import Store
        >>> Store(Path("results")).path("boenisch-2023-table2").name
        'boenisch-2023-table2.json'
    """

    folder: Path

    def path(self, name: str) -> Path:
        """Return the file of an experiment.

        Args:
            name: Name of the experiment.
        """
        return self.folder / f"{name}.json"

    def load(self, name: str) -> list[Outcome]:
        """Return the units of an experiment that ran; none where there is no file.

        Args:
            name: Name of the experiment.

        Raises:
            DataError: For a file that holds something else.
        """
        path = self.path(name)
        if not path.exists():
            return []
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["experiment"] != name:
                raise ValueError(f"it is of {content['experiment']!r}")
            return [Outcome(**entry) for entry in content["units"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: no results of {name} ({error}); move it away") from None

    def save(self, name: str, outcomes: Sequence[Outcome]) -> None:
        """Write the units of an experiment that ran, all or none.

        Args:
            name: Name of the experiment.
            outcomes: All its units that ran.

        Raises:
            DataError: Where the folder cannot be written to.
        """
        lines = ",\n".join(json.dumps(asdict(outcome), allow_nan=False) for outcome in outcomes)
        text = f'{{"experiment": {json.dumps(name)}, "units": [\n{lines}\n]}}\n'
        write(self.path(name), text, _RESULTS)


def missing_units(units: Sequence[Unit], outcomes: Sequence[Outcome]) -> list[Unit]:
    """Return the units that have no result yet, in order, each once."""
    stored = {unit_key(outcome.unit) for outcome in outcomes}
    by_key = {unit_key(unit): unit for unit in units}
    return [unit for name, unit in by_key.items() if name not in stored]


def run_units(
    experiment: Experiment,
    units: Sequence[Unit],
    store: Store,
    folders: Folders,
    *,
    again: bool = False,
    progress: Callable[[Unit], object] = lambda unit: None,
) -> list[Outcome]:
    """Run each unit that has no result, and store each result at once.

    Args:
        experiment: The experiment.
        units: Those of its units that are to be run.
        store: The store of the results.
        folders: The folders that units read and write.
        again: Whether units that have a result are run too.
        progress: Called with each unit that ended.

    Returns:
        All units of the experiment in the store.

    Raises:
        DataError: For data that is not there.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from research.experiment import Experiment, Folders
        >>> from research.store import Store, run_units
        >>> half = Experiment(name="half", paper="", shows="", cost="", tables=lambda done: [],
        ...                   units=lambda seeds, scale: [{"seed": seed} for seed in range(seeds)],
        ...                   run=lambda unit, folders: unit["seed"] / 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     folders = Folders(Path(folder), Path(folder))
        ...     outcomes = run_units(half, half.list_units(2, 1.0), Store(Path(folder)), folders)
        ...     [outcome.result for outcome in outcomes]
        [0.0, 0.5]
    """
    pending = list(units) if again else missing_units(units, store.load(experiment.name))
    require_data(experiment.name, experiment.data_of(pending), folders.data)
    for unit in pending:
        start = time.monotonic()
        result = experiment.run(unit, folders)
        # Read again: other processes may have added units meanwhile.
        outcomes = [
            outcome
            for outcome in store.load(experiment.name)
            if unit_key(outcome.unit) != unit_key(unit)
        ]
        seconds = round(time.monotonic() - start, 1)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        outcomes.append(Outcome(dict(unit), result, seconds, describe_machine(), today))
        store.save(experiment.name, outcomes)
        progress(unit)
    return store.load(experiment.name)
