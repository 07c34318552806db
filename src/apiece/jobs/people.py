"""People: the table as arrays, split for training and testing, with the budgets of the trained."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from apiece._types import AnyArray, Integers, Mask
from apiece.budgets import Budgets
from apiece.budgets.groups import list_doubts as list_budget_doubts
from apiece.budgets.units import Units
from apiece.datasets import Numeric
from apiece.datasets.encode import encode
from apiece.datasets.tables import read_table
from apiece.errors import DataError, InputError
from apiece.jobs.config import Data, Job, Pate
from apiece.jobs.roster import choose_public, choose_trained, read_budgets
from apiece.jobs.table import Declaration, Table, read_job_table

Features = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Examples:
    """Features (n, d), labels (n,), and whose each row is; a faulty row is NaN throughout."""

    features: Features
    # (n,) Positions in the classes, or the numbers to predict.
    labels: AnyArray
    # (n,) Ids of persons with any number of rows; None where each row is a record.
    person: npt.NDArray[np.str_] | None = None
    # (n,) The id in a ledger of each row's person or record; None of records without ids.
    ids: npt.NDArray[np.str_] | None = None

    def select(self, rows: Mask) -> Examples:
        """Return some of the rows."""
        person = None if self.person is None else self.person[rows]
        ids = None if self.ids is None else self.ids[rows]
        return Examples(self.features[rows], self.labels[rows], person, ids)

    @property
    def unit(self) -> str:
        """Whose presence is hidden: "record", or "person" where persons have several rows."""
        return "record" if self.person is None else "person"

    @property
    def owner(self) -> Integers:
        """(n,) The position of each row's record or person, persons in the order of their ids."""
        if self.person is None:
            return np.arange(self.labels.size)
        return np.unique(self.person, return_inverse=True)[1]

    @property
    def units(self) -> int:
        """How many records or persons there are."""
        return np.unique(self.owner).size

    @property
    def faulty(self) -> Mask:
        """(n,) Which rows cannot be used; how many is data about people."""
        return np.isnan(self.features[:, 0])

    def without_faulty(self) -> Examples:
        """Return the rows to train on: of each person the usable ones, else one that is faulty.

        A sum over a person's rows is left out whole where one of them is faulty. Which rows stay
        depends on that person's rows alone; and everyone stays, as the plan counts them. Where each
        row is a record, all stay.
        """
        if self.person is None:
            return self
        # Rows by person, a person's usable ones first.
        order = np.lexsort((self.faulty, self.person))
        person = self.person[order]
        starts_person = np.ones(order.size, dtype=bool)
        starts_person[1:] = person[1:] != person[:-1]
        stays = ~self.faulty
        # The first row of each person stays: a usable one where there is one.
        stays[order[starts_person]] = True
        return self.select(stays)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class People:
    """Rows to train and to test on, with the budgets of the trained and what is declared."""

    train: Examples
    test: Examples
    # Budgets of the training records, in their order; or of persons, by id.
    budgets: Budgets
    declaration: Declaration
    # Doubts about the header, the schema and the groups of budgets: public.
    warnings: tuple[str, ...]
    # Doubts about the rows: for the steward's eyes only.
    private_warnings: tuple[str, ...]
    # (Q, d) Encoded rows that are declared public; None without PATE.
    public: Features | None = None
    # Public rows that a search scores on; None without.
    validation: Examples | None = None
    # File that was read → its SHA-256; none of packaged ones.
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @property
    def group_of_rows(self) -> npt.NDArray[np.int64]:
        """(n,) The budget group of each row that is trained on."""
        group = self.budgets.group_index
        person = self.train.person
        if person is None:
            return group
        # Joined by id: the rows of persons stand in any order.
        return group[Units.of(person, self.budgets.ids).owner]


def read_people(job: Job, coins: int | None = None) -> People:
    """Return the people of a job's table; every row is encoded by itself and the public schema.

    `coins` is the seed of the split, where one is drawn; None for the job's own. A person's rows
    are all trained on or all held out. Raises `DataError` for what the table lacks or what in it
    cannot be used, `BudgetError` for budgets that cannot be used.

    >>> from apiece.jobs.config import job_from_dict
    >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
    >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
    >>> read_people(job_from_dict(data, name="first", changes={})).declaration.classes
    ('good', 'bad')
    """
    data = job.data
    seed = job.run.seed if coins is None else coins
    table = read_job_table(data, job.budgets)
    declaration = table.declaration
    roster = table.roster
    # Units are split, not rows, so that a person is trained on or held out as a whole.
    trained_units = choose_trained(roster, data, seed)
    trained = roster.rows_of(trained_units)
    budgets = read_budgets(roster, job.budgets, trained_units)
    # Held-out rows that are declared public are neither trained on nor tested on.
    tested = ~trained
    if job.pate.public_share is not None:
        public_units = choose_public(roster, ~trained_units, job.pate.public_share, seed)
        tested &= ~roster.rows_of(public_units)
    encoded = table.encode()
    # What depends on the header, the schema and the budgets of groups is public; what depends on a
    # cell is not.
    public_doubts = list_budget_doubts(budgets.groups)
    public_doubts += table.list_public_doubts(len(budgets))
    private_doubts = table.list_private_doubts(encoded)
    public = None
    if job.training.method == "pate":
        declared_public = encoded.features[~trained & ~tested]
        public = _read_public(job.pate, data, declaration, declared_public)
    validation = None
    if job.search.validation is not None:
        validation = _read_validation(job.search.validation, table)
    # Row i of the features, the labels and the ids is row i of the table.
    rows = Examples(encoded.features, table.labels, roster.person, roster.ledger_ids)
    people = People(
        train=rows.select(trained),
        test=rows.select(tested),
        budgets=budgets,
        declaration=declaration,
        warnings=tuple(public_doubts),
        private_warnings=tuple(private_doubts),
        public=public,
        validation=validation,
        fingerprints=_digest_files(data, job.pate.public, job.search.validation),
    )
    _refuse_unlearnable(people)
    return people


def _digest_files(data: Data, *paths: str | None) -> dict[str, str]:
    """Return the SHA-256 of the files of the data and of others, by their names."""
    digests = {}
    # A packaged table is the same for everybody: it has no file of the steward's.
    source = None if data.packaged else data.source
    for path in (*paths, data.people, source):
        if path is not None:
            content = Path(path).read_bytes()
            digests[Path(path).name] = hashlib.sha256(content).hexdigest()
    return digests


def _read_public(
    pate: Pate, data: Data, declaration: Declaration, declared_public: Features
) -> Features:
    """Return the encoded public rows, without faulty ones.

    They are those of a table of public rows, or the held-out rows that were declared public.
    """
    features = declared_public
    if pate.public is not None:
        dialect = data.dialect_of(pate.public)
        frame = read_table(pate.public, dialect)
        features = encode(frame, declaration.features, decimal=dialect.decimal).features
    usable = features[~np.isnan(features).any(axis=1)]
    if len(usable) < pate.question_count:
        raise DataError(
            f"public: {len(usable)} usable rows for {pate.question_count} questions; ask fewer "
            "with --questions, or declare more rows public"
        )
    return usable


def _read_validation(path: str, table: Table) -> Examples:
    """Return the usable public rows of a file that a search scores on."""
    declaration = table.declaration
    frame, decimal = table.read_companion(path)
    features = encode(frame, declaration.features, decimal=decimal).features
    labels = declaration.read_labels(frame, decimal)
    usable = np.isfinite(features).all(axis=1) & np.isfinite(labels)
    if not usable.any():
        raise DataError(f"validation {path}: has no usable row; give public rows with a label")
    return Examples(features[usable], labels[usable])


def _refuse_unlearnable(people: People) -> None:
    """Refuse one class only, a test label never seen in training, and no usable record."""
    label = people.declaration.label
    classes = people.declaration.classes
    usable_labels = people.train.labels[~people.train.faulty]
    if usable_labels.size == 0:
        raise DataError("features: every training record has a NaN or infinite feature; mend them")
    if isinstance(people.declaration.target, Numeric):
        if people.public is not None:
            raise InputError(
                f"label column {label!r}: is a number, and teachers vote for classes; "
                "declare it as categories, or leave out --method pate"
            )
        return
    # Of all rows, faulty ones too: a class occurs whether or not its rows can be used.
    trained_classes = np.unique(people.train.labels)
    if trained_classes.size < 2:
        raise DataError(
            f"label column {label!r}: every training record is {classes[trained_classes[0]]!r}; "
            "one class cannot be learned, give at least two"
        )
    untrained_classes = np.setdiff1d(people.test.labels, trained_classes)
    if untrained_classes.size:
        raise DataError(
            f"label column {label!r}: {classes[untrained_classes[0]]!r} is in the test records "
            "and never in training; drop it or change the split"
        )
