"""Inputs of an audit: confidences of shadow models, canaries and coins, joined by record id."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._files import Kind, write
from apiece._identity import require_ids
from apiece._types import AnyArray, Floats, Integers, Mask
from apiece.budgets.units import find_positions
from apiece.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from apiece.datasets.tables import Dialect

# The comment in a file of arrays, by which it is known.
_MARK = b"apiece arrays"
_ARRAYS = Kind("a file of scores", (".npz",), _MARK)


@dataclass(frozen=True, eq=False, repr=False)
class ShadowScores:
    """What K models say of n records: the input of every membership test; data about people.

    Args:
        ids: (n,), each once.
        groups: (n,), names or positions of budget groups.
        included: (K, n), True or 1 where a model was trained on a record, False or 0 elsewhere.
        confidences: (K, n) or (K, n, augmentations), φ = log(p/(1−p)) of the true class.

    Raises:
        DataError: Where the shapes do not fit, an id repeats, a group is missing, an entry of
            `included` is no truth value, or a confidence is NaN; and for a Series whose index is
            not the ids, or a table whose columns are not.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import ShadowScores
        >>> included = np.array([[True, False], [False, True]])
        >>> shadows = ShadowScores(np.array([7, 9]), np.array(["a", "b"]), included, 4.0 * included)
        >>> len(shadows), shadows.models
        (2, 2)
    """

    ids: AnyArray
    groups: AnyArray
    included: Mask
    confidences: Floats

    def __post_init__(self) -> None:
        ids = _check.record_ids("ids", self.ids)
        # Series and tables are joined by id; arrays are taken by position.
        require_ids("ids", self.ids, groups=self.groups)
        require_ids("ids", ids, axis=1, included=self.included, confidences=self.confidences)
        groups = _check.group_names("groups", self.groups, size=ids.size)
        included = _check.truth_values("included", self.included)
        shape = included.shape
        if included.ndim != 2 or shape[1] != ids.size:
            raise DataError(f"included: shape {shape} for {ids.size} ids; give (models, records)")
        confidences = _check.numbers("confidences", self.confidences, error=DataError)
        if confidences.shape[:2] != shape or confidences.ndim not in (2, 3):
            raise DataError(f"confidences: shape {confidences.shape} for included of shape {shape}")
        missing = np.isnan(confidences)
        if missing.any():
            model, record = np.argwhere(missing)[0, :2].tolist()
            raise DataError(
                f"confidences[{model}, {record}] = nan: {int(missing.sum())} entries are NaN; find "
                "the model that diverged"
            )
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "included", included)
        object.__setattr__(self, "confidences", confidences)

    def __len__(self) -> int:
        return int(self.ids.size)

    @property
    def models(self) -> int:
        """How many models."""
        return int(self.included.shape[0])

    def select(self, ids: npt.ArrayLike) -> ShadowScores:
        """Return the columns of `ids`, in that order.

        Args:
            ids: Of records that are there.

        Raises:
            DataError: For an unknown one.
        """
        return self.of(slice(None), positions(self.ids, np.asarray(ids)))

    def of(self, models: AnyArray | slice, records: AnyArray | slice) -> ShadowScores:
        """Return the confidences of some models in some records.

        Args:
            models: Positions, truth values or a slice.
            records: Positions, truth values or a slice.
        """
        included = self.included[models][:, records]
        confidences = self.confidences[models][:, records]
        return ShadowScores(self.ids[records], self.groups[records], included, confidences)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to one `.npz` file, complete or not at all.

        Args:
            path: Of the file.

        Raises:
            DataError: Where it cannot be written.
        """
        write_arrays(Path(path), {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ShadowScores:
        """Return what `save` wrote.

        Args:
            path: Of the file.

        Raises:
            DataError: For another file.
        """
        arrays = read_arrays(Path(path))
        names = [field.name for field in fields(cls)]
        if missing := sorted(set(names) - set(arrays)):
            raise DataError(f"{path}: no {', '.join(missing)} in it; give a scores file")
        return cls(**{name: arrays[name] for name in names})


def positions(known: AnyArray, wanted: AnyArray) -> Integers:
    """Return the position in `known` of each wanted id; raise `DataError` for one not in it."""
    index = find_positions(known, _check.ids("ids", wanted))
    unknown = np.flatnonzero(index < 0)
    if unknown.size:
        raise DataError(
            f"ids: {wanted[unknown[0]]!s} is not among the {known.size} records "
            f"({unknown.size} of {wanted.size} ids do not match)"
        )
    return index


def join(name: str, known: AnyArray, wanted_name: str, wanted: AnyArray) -> Integers:
    """Return the position in `known` of each wanted id, if the two hold the same ids."""
    known_ids = _check.record_ids(name, known)
    wanted_ids = _check.record_ids(wanted_name, wanted)
    _refuse_extra_ids(name, known_ids, wanted_name, wanted_ids)
    _refuse_extra_ids(wanted_name, wanted_ids, name, known_ids)
    return positions(known_ids, wanted_ids)


def _refuse_extra_ids(name: str, ids: AnyArray, other_name: str, other_ids: AnyArray) -> None:
    extra = np.setdiff1d(ids, other_ids)
    if extra.size:
        raise DataError(
            f"ids do not match: {extra[0]!s} is in {name} and not in {other_name} ({extra.size} "
            "such ids); give both files of the same records"
        )


def read_canaries(
    canaries: Path,
    coins: Path | None,
    *,
    id_column: str,
    score: str,
    included: str,
    group: str | None,
    person: str | None,
    dialect: Dialect,
) -> tuple[Floats, Mask, AnyArray | None]:
    """Return scores, coins and maybe groups, one a canary, or a person where `person` is given.

    With `coins`, a second file, the two are joined by id, whatever the order of their rows. Groups
    are read from that file if it has such a column, else from the canaries'.
    """
    from apiece.budgets import Units
    from apiece.budgets.units import read_ids, read_persons
    from apiece.datasets.cells import read_texts, select_column
    from apiece.datasets.tables import PLAIN, is_parquet, read_table

    # A dialect is of CSV; where just one of the files is Parquet, it is read without.
    mixed = coins is not None and is_parquet(coins) != is_parquet(canaries)

    def read_file(path: Path) -> pd.DataFrame:
        return read_table(path, PLAIN if mixed and is_parquet(path) else dialect)

    def read_columns(path: Path, names: list[str]) -> pd.DataFrame:
        table = read_file(path)
        for name in names:
            select_column(table, name, f"{path.name}:")
        return table[list(dict.fromkeys(names))]

    # The columns of each file. Without a file of coins the canaries have all.
    own_columns: list[str] = []
    coin_columns = [included]
    if group:
        is_with_coins = coins is None or group in read_file(coins).columns
        (coin_columns if is_with_coins else own_columns).append(group)
    if coins is None:
        own_columns, coin_columns = coin_columns, []
    # The column that joins two files, or says whose each row is; None where neither is needed.
    key = id_column if person is None and coins is not None else person
    names = [score, *own_columns]
    if key:
        names.append(key)
    table = read_columns(canaries, names)
    scores = _parse_scores(table, score, dialect.decimal)
    columns = {name: read_texts(table[name]).astype(str) for name in own_columns}
    ids: AnyArray = np.zeros(0)
    if key is not None:
        ids = (read_ids if person is None else read_persons)(table, key).astype(str)
    # All rows of a person become one canary, with one coin and one group.
    if person is not None:
        units = Units.of(ids)
        ids = units.ids
        scores = units.mean(scores)
        columns = {name: units.once(column, f"column {name!r}") for name, column in columns.items()}
    # The coins are put into the order of the scores, by id.
    if coins is not None and key is not None:
        coin_table = read_columns(coins, [key, *coin_columns])
        order = join(str(coins), read_ids(coin_table, key).astype(str), str(canaries), ids)
        columns |= {name: read_texts(coin_table[name]).astype(str)[order] for name in coin_columns}
    truth = _parse_coins(columns[included], included)
    return scores, truth, columns[group] if group else None


def _parse_scores(table: pd.DataFrame, name: str, decimal: str) -> Floats:
    """Return the scores in a column (n,); raise `DataError` for one that is no number."""
    from apiece.datasets.cells import parse_numbers, read_texts

    cells = read_texts(table[name])
    scores = parse_numbers(cells, decimal)
    bad = np.flatnonzero(np.isnan(scores))
    if bad.size:
        raise DataError(
            f"column {name!r}, row {int(bad[0]) + 1} = {cells[bad[0]]!r}: not a number "
            f"({bad.size} such rows); give every canary a score"
        )
    return scores


def _parse_coins(cells: AnyArray, name: str) -> Mask:
    """Return who was included (n,), by the texts of a column; raise `DataError` for others."""
    words = np.char.lower(cells)
    # Other words could mean anything: a coin read wrongly would make the bound meaningless.
    if not np.isin(words, ["0", "1", "true", "false"]).all():
        raise DataError(f"column {name!r}: give 0 or 1, true or false")
    return np.isin(words, ["1", "true"])


def write_arrays(path: Path, arrays: Mapping[str, AnyArray]) -> None:
    """Write arrays to a `.npz` file with a comment by which it is known; complete or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = _MARK
    write(path, buffer.getvalue(), _ARRAYS)


def read_arrays(path: Path) -> dict[str, AnyArray]:
    """Return the arrays in a `.npz` file; nothing in it is executed."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            # Every array is read here: a file that is damaged anywhere is refused as a whole.
            return {name: data[name] for name in data.files}
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a .npz file") from None
    except (ValueError, EOFError, AttributeError, zlib.error, zipfile.BadZipFile):
        # Not numpy's message: it says how to load what is not safe to load.
        raise DataError(
            f"{path}: not a .npz file of arrays, or damaged; give one of numpy.savez"
        ) from None
