"""People: the table as arrays, split for training and testing, with the budgets of the trained."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from apiece.budgets import Budgets
from apiece.budgets import doubts as budget_doubts
from apiece.datasets import (
    PACKAGED,
    Categorical,
    Feature,
    Numeric,
    Schema,
    column,
    encode,
    encode_labels,
    encode_numbers,
    lint,
    load,
    matching,
    packaged_schema,
    read_schema,
    read_table,
)
from apiece.errors import DataError, InputError
from apiece.jobs import doubts
from apiece.jobs.config import Job
from apiece.jobs.units import budgets, declared_public, read_units, split

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Records:
    """Features, labels, and whose each row is; a faulty row is NaN throughout.

    Attributes:
        features: (n, d).
        labels: (n,), positions in the classes, or the numbers to predict.
        person: (n,), ids of persons with any number of rows; None where each row is a record.

    Example:
        >>> bad = np.array([[1.0, 0.0], [np.nan, np.nan]], dtype=np.float32)
        >>> Records(bad, np.array([0, 1])).faulty.tolist()
        [False, True]
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[Any]
    person: npt.NDArray[np.str_] | None = None

    @property
    def units(self) -> int:
        """How many records or persons there are."""
        return self.labels.size if self.person is None else np.unique(self.person).size

    @property
    def faulty(self) -> npt.NDArray[np.bool_]:
        """Which rows cannot be used; how many is data about people."""
        return np.isnan(self.features[:, 0])

    def without_faulty(self) -> Records:
        """Return the rows to train on: of each person the usable ones, else one that is faulty.

        A sum over a person's rows is left out whole where one of them is faulty. Which rows stay
        depends on that person's rows alone; and everyone stays, as the plan counts them. Where each
        row is a record, all stay.
        """
        if self.person is None:
            return self
        order = np.lexsort((self.faulty, self.person))
        first = np.ones(order.size, dtype=bool)
        first[1:] = self.person[order][1:] != self.person[order][:-1]
        kept = ~self.faulty
        kept[order[first]] = True
        return Records(self.features[kept], self.labels[kept], self.person[kept])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class People:
    """Training rows with the budgets of their records or persons, test rows, how they are encoded.

    Attributes:
        train: The rows that are trained on.
        test: Those that are held out.
        budgets: Of the training records, in their order; or of persons, by id.
        schema: Of the table.
        label: The column that is predicted.
        columns: The features' columns, by name.
        target: The label's declaration: its classes, or the range of a number.
        warnings: Of the header, the schema and the groups of budgets.
        private_warnings: Of the rows: for the steward's eyes only.
        public: (Q, d) Encoded features of rows that are declared public; None without PATE.
        fingerprints: SHA-256 of each file that was read, by its name; none of packaged ones.

    Example:
        >>> from apiece.jobs import job_from_dict
        >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
        >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
        >>> people = read_people(job_from_dict(data, name="first", changes={"seed": 0}))
        >>> people.label, len(people.budgets) == len(people.train.labels)
        ('risk', True)
    """

    train: Records
    test: Records
    budgets: Budgets
    schema: Schema
    label: str
    columns: dict[str, Feature]
    target: Categorical | Numeric
    warnings: tuple[str, ...]  # of the header, the schema and the groups of budgets
    private_warnings: tuple[str, ...]  # of the rows: for the steward's eyes only
    public: npt.NDArray[np.float32] | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @property
    def group_of_rows(self) -> npt.NDArray[np.int64]:
        """The budget group of each row that is trained on."""
        group, person = self.budgets.group_index, self.train.person
        if person is None:
            return group
        order = np.argsort(self.budgets.ids)
        return group[order[np.searchsorted(self.budgets.ids[order], person)]]

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values; none of a number."""
        return self.target.values if isinstance(self.target, Categorical) else ()


def read_people(job: Job, coins: int | None = None) -> People:
    """Return the people of a job's table; every row is encoded by itself and the public schema.

    Args:
        job: What to read, and how.
        coins: The seed of the split, where one is drawn; None for the job's own. A person's rows
            are all trained on or all held out.

    Raises:
        DataError: For what the table lacks or what in it cannot be used.
        BudgetError: For budgets that cannot be used.

    Example:
        >>> from apiece.jobs import job_from_dict
        >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
        >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
        >>> read_people(job_from_dict(data, name="first", changes={})).classes
        ('good', 'bad')
    """
    data = job.data
    dialect = data.dialect_of(data.source)
    frame = load(data.source) if data.packaged else read_table(data.source, dialect)
    frame, schema, label = _with_schema(frame, job)
    target = schema.target(label)
    taken = doubts.roles(job, label)
    doubts.refuse_person_as_feature(data.person, schema)
    columns = schema.features(but=set(taken))
    doubts.refuse_too_wide(columns, len(frame))
    labels = _labels(frame, label, target, dialect.decimal)
    units = read_units(frame, data)
    chosen = split(units, data, job.run.seed if coins is None else coins)
    trained, asked = units.rows(chosen), budgets(units, job.budgets, chosen)
    tested, share = ~trained, job.pate.public_share
    if share is not None:
        seed = job.run.seed if coins is None else coins
        tested = tested & ~units.rows(declared_public(units, ~chosen, share, seed))
    encoded = encode(frame, columns, decimal=dialect.decimal)
    doubts.refuse_unread(frame, columns, encoded, dialect.decimal)
    open_rows = _public(job, columns, encoded.features[~trained & ~tested])
    public, private = budget_doubts(asked.groups), []
    if not data.packaged:
        public += lint(schema, list(frame.columns), taken=taken, records=len(asked))
        private = doubts.of_rows(frame, columns, encoded, with_ids=units.ids is not None)
    people = People(
        fingerprints=_fingerprints(job),
        train=Records(encoded.features[trained], labels[trained], units.people(trained)),
        test=Records(encoded.features[tested], labels[tested], units.people(tested)),
        public=open_rows,
        budgets=asked,
        schema=schema,
        label=label,
        columns=columns,
        target=target,
        warnings=tuple(public),
        private_warnings=tuple(private),
    )
    _check_labels(people)
    return people


def _public(
    job: Job, columns: dict[str, Feature], declared: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32] | None:
    """Return the encoded public rows, without faulty ones; None where nothing is asked of them."""
    if job.training.method != "pate":
        return None
    found, path = declared, job.pate.public
    if path is not None:
        dialect = job.data.dialect_of(path)
        found = encode(read_table(path, dialect), columns, decimal=dialect.decimal).features
    usable = found[~np.isnan(found).any(axis=1)]
    if len(usable) < job.pate.asked:
        raise DataError(
            f"public: {len(usable)} usable rows for {job.pate.asked} questions; ask fewer with "
            "--questions, or declare more rows public"
        )
    return usable


def _fingerprints(job: Job) -> dict[str, str]:
    data = job.data
    own = () if data.packaged else (data.source, data.people)
    paths = [Path(path) for path in (*own, job.pate.public) if path is not None]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _labels(
    frame: pd.DataFrame, label: str, target: Categorical | Numeric, decimal: str
) -> npt.NDArray[Any]:
    if isinstance(target, Numeric):
        return encode_numbers(frame, label, decimal=decimal)
    return encode_labels(frame, label, target.values)


def _with_schema(frame: pd.DataFrame, job: Job) -> tuple[pd.DataFrame, Schema, str]:
    data = job.data
    if data.packaged and data.schema is None:
        return frame, packaged_schema(data.source), data.label or PACKAGED[data.source].label
    if data.label is None:
        raise InputError("label: missing; give --label with the name of the column to predict")
    column(frame, data.label, "label")
    if data.schema is not None:
        return frame, read_schema(data.schema), data.label
    found = matching(list(frame.columns), data.label)
    if found is None:
        columns = (job.budgets.epsilon, data.ids, data.person, data.split)
        skip = "".join(f" --skip {c}" for c in columns if c)
        raise DataError(
            f"schema: none given and no packaged one fits {data.source}; ranges and categories "
            "must be public, not read from people's rows: write a template with "
            f"`apiece schema {data.source} --label {data.label}{skip} --out schema.toml`, fill it "
            "in, and pass --schema schema.toml"
        )
    schema, names = found
    own = {plain: given for given, plain in names.items()}
    label = next(plain for plain in own if own[plain] == data.label)
    return frame.rename(columns=names), schema, label


def _check_labels(people: People) -> None:
    """Refuse one class only, a test label never seen in training, and no usable record."""
    usable = people.train.labels[~people.train.faulty]
    if usable.size == 0:
        raise DataError("features: every training record has a NaN or infinite feature; mend them")
    if isinstance(people.target, Numeric):
        if people.public is not None:
            raise InputError(
                f"label column {people.label!r}: is a number, and teachers vote for classes; "
                "declare it as categories, or leave out --method pate"
            )
        return
    seen = np.unique(people.train.labels)
    if seen.size < 2:
        raise DataError(
            f"label column {people.label!r}: every training record is {people.classes[seen[0]]!r}; "
            "one class cannot be learned, give at least two"
        )
    unseen = np.setdiff1d(people.test.labels, seen)
    if unseen.size:
        raise DataError(
            f"label column {people.label!r}: {people.classes[unseen[0]]!r} is in the test records "
            "and never in training; drop it or change the split"
        )
