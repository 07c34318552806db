"""Results of experiments: one JSON file each, written whole after every unit."""

from __future__ import annotations

import datetime
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apiece._files import Kind, write
from apiece.errors import DataError
from apiece.reproduce.experiment import Done, Experiment, Place, Unit, key

_RESULTS = Kind("results of an experiment", (".json",), b'{"experiment": ')


@dataclass(frozen=True, slots=True)
class Store:
    """The results of experiments in a folder.

    Attributes:
        folder: Its path.

    Example:
        >>> Store(Path("experiments/results")).path("boenisch-2023-table2").name
        'boenisch-2023-table2.json'
    """

    folder: Path

    def path(self, name: str) -> Path:
        """Return the file of an experiment.

        Args:
            name: Of the experiment.
        """
        return self.folder / f"{name}.json"

    def load(self, name: str) -> list[Done]:
        """Return what is done of an experiment; nothing where there is no file.

        Args:
            name: Of the experiment.

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
            return [Done(**entry) for entry in content["units"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: no results of {name} ({error}); move it away") from None

    def save(self, name: str, done: Sequence[Done]) -> None:
        """Write what is done of an experiment, whole or not at all.

        Args:
            name: Of the experiment.
            done: All its units.

        Raises:
            DataError: Where the folder cannot be written to.
        """
        entries = [{slot: getattr(one, slot) for slot in Done.__slots__} for one in done]
        lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
        head = json.dumps(name)
        text = f'{{"experiment": {head}, "units": [\n{lines}\n]}}\n'
        write(self.path(name), text, _RESULTS)


def missing(units: Sequence[Unit], done: Sequence[Done]) -> list[Unit]:
    """Return the units that have no result yet, in order, each once.

    Args:
        units: That are wanted.
        done: That ran.

    Example:
        >>> missing([{"seed": 0}, {"seed": 1}], [Done({"seed": 0}, 1.0, None, "", "")])
        [{'seed': 1}]
    """
    there = {key(one.unit) for one in done}
    left = {key(unit): unit for unit in units}
    return [unit for name, unit in left.items() if name not in there]


def run(
    experiment: Experiment,
    units: Sequence[Unit],
    store: Store,
    place: Place,
    *,
    again: bool = False,
    watch: Callable[[Unit], object] = lambda unit: None,
) -> list[Done]:
    """Run each unit that has no result, and keep each result at once.

    Args:
        experiment: Which.
        units: Which of its units.
        store: Where results are kept.
        place: Where units run.
        again: Whether units that have a result are run too.
        watch: Is told each unit that ended.

    Returns:
        All that is stored of the experiment.

    Raises:
        DataError: For data that is not there.

    Example:
        >>> import tempfile
        >>> half = Experiment(name="half", paper="", shows="", cost="", tables=lambda done: [],
        ...                   units=lambda seeds, scale: [{"seed": seed} for seed in range(seeds)],
        ...                   run=lambda unit, place: unit["seed"] / 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Place(Path(folder), Path(folder))
        ...     [one.result for one in run(half, half.wanted(2, 1.0), Store(Path(folder)), place)]
        [0.0, 0.5]
    """
    lacks = experiment.needs(place.data)
    if lacks is not None:
        raise DataError(f"{experiment.name}: {lacks}")
    for unit in list(units) if again else missing(units, store.load(experiment.name)):
        begun = time.monotonic()
        result = experiment.run(unit, place)
        # other processes may have added units meanwhile
        done = [one for one in store.load(experiment.name) if key(one.unit) != key(unit)]
        seconds = round(time.monotonic() - begun, 1)
        done.append(Done(dict(unit), result, seconds, machine(), _today()))
        store.save(experiment.name, done)
        watch(unit)
    return store.load(experiment.name)


def machine() -> str:
    """Return what ran: the processor's model, threads and torch, without a host's name.

    Example:
        >>> isinstance(machine(), str)
        True
    """
    model = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        named = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else model
    return ", ".join([model, *_torch()])


def _torch() -> list[str]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return []
    return [f"{torch.get_num_threads()} threads", f"torch {torch.__version__}"]


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
