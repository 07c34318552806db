"""People: the table as arrays, split for training and testing, with the budgets of the trained.

The header, the schema and the number of records are public; what is said of cells is data about
people, for the steward's eyes only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from apiece._types import AnyArray, Floats, Integers, Mask
from apiece.budgets import Budgets
from apiece.budgets.frames import apply_cap, read_budgets
from apiece.budgets.groups import list_doubts as list_budget_doubts
from apiece.budgets.units import Units, read_ids
from apiece.datasets import (
    Categorical,
    Date,
    Numeric,
    Schema,
    Skip,
    load,
    packaged_schema,
    read_schema,
    read_table,
)
from apiece.datasets.cells import list_markers, locate_values, read_texts, select_column
from apiece.datasets.encode import Encoded, encode, encode_labels, encode_numbers
from apiece.datasets.packaged import PACKAGED, match_packaged
from apiece.datasets.schema import Feature, lint
from apiece.errors import DataError, InputError
from apiece.jobs.config import BudgetColumns, Data, Job

if TYPE_CHECKING:
    import pandas as pd

Columns = Mapping[str, Feature]
MOST_BYTES = 2**32  # of features
_PARTS = {"train": True, "training": True, "test": False, "testing": False}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Examples:
    """Features (n, d), labels (n,), and whose each row is; a faulty row is NaN throughout.

    labels: positions in the classes, or the numbers to predict. person: (n,), ids of persons with
    any number of rows; None where each row is a record. ids: (n,), whose each row is in a ledger,
    person or record; None where nobody says.
    """

    features: npt.NDArray[np.float32]
    labels: AnyArray
    person: npt.NDArray[np.str_] | None = None
    ids: npt.NDArray[np.str_] | None = None

    def of(self, rows: Mask) -> Examples:
        """Return some of the rows."""
        person, ids = (None if v is None else v[rows] for v in (self.person, self.ids))
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
    def faulty(self) -> npt.NDArray[np.bool_]:
        """Which rows cannot be used; how many is data about people."""
        return np.isnan(self.features[:, 0])

    def without_faulty(self) -> Examples:
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
        return self.of(kept)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class People:
    """Training rows with the budgets of their records or persons, test rows, how they are encoded.

    budgets: of the training records, in their order; or of persons, by id. columns: the features',
    by name. target: the label's declaration. public: (Q, d), encoded rows that are declared public;
    None without PATE. validation: public rows that a search scores on; None without. fingerprints:
    SHA-256 of each file that was read, by its name; none of packaged ones.
    """

    train: Examples
    test: Examples
    budgets: Budgets
    schema: Schema
    label: str
    columns: dict[str, Feature]
    target: Categorical | Numeric
    warnings: tuple[str, ...]  # of the header, the schema and the groups of budgets
    private_warnings: tuple[str, ...]  # of the rows: for the steward's eyes only
    public: npt.NDArray[np.float32] | None = None
    validation: Examples | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @property
    def group_of_rows(self) -> npt.NDArray[np.int64]:
        """The budget group of each row that is trained on."""
        group, person = self.budgets.group_index, self.train.person
        return group if person is None else group[Units.of(person, self.budgets.ids).owner]

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values; none of a number."""
        return self.target.values if isinstance(self.target, Categorical) else ()


def read_people(job: Job, coins: int | None = None) -> People:
    """Return the people of a job's table; every row is encoded by itself and the public schema.

    coins: the seed of the split, where one is drawn; None for the job's own. A person's rows are
    all trained on or all held out. Raises `DataError` for what the table lacks or what in it cannot
    be used, `BudgetError` for budgets that cannot be used.

    >>> from apiece.jobs import job_from_dict
    >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
    >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
    >>> read_people(job_from_dict(data, name="first", changes={})).classes
    ('good', 'bad')
    """
    data, seed = job.data, job.run.seed if coins is None else coins
    dialect = data.dialect_of(data.source)
    frame = load(data.source) if data.packaged else read_table(data.source, dialect)
    frame, schema, label = _with_schema(frame, job)
    target = schema.target(label)
    taken = roles(job, label)
    if data.person is not None and not isinstance(schema.columns.get(data.person, Skip()), Skip):
        raise InputError(
            f"person column {data.person!r}: schema {schema.name} declares it as a feature, and "
            'ids are not to be learned from; declare it kind = "skip"'
        )
    columns = schema.features(but=set(taken))
    refuse_too_wide(columns, len(frame))
    labels = _labels(frame, label, target, dialect.decimal)
    units = read_units(frame, data)
    chosen = split(units, data, seed)
    trained, asked = units.rows(chosen), budgets(units, job.budgets, chosen)
    tested, share = ~trained, job.pate.public_share
    if share is not None:
        tested = tested & ~units.rows(declared_public(units, ~chosen, share, seed))
    encoded = encode(frame, columns, decimal=dialect.decimal)
    refuse_unread(frame, columns, encoded, dialect.decimal)
    public, private = list_budget_doubts(asked.groups), []
    if not data.packaged:
        public += lint(schema, list(frame.columns), taken=taken, records=len(asked))
        private = of_rows(frame, columns, encoded, dialect.decimal, with_ids=units.ids is not None)
    owner = units.ids if units.person is None else units.person
    whole = Examples(encoded.features, labels, units.person, owner)
    read = [job.pate.public, job.search.validation, data.people]
    if not data.packaged:
        read.append(data.source)
    people = People(
        train=whole.of(trained),
        test=whole.of(tested),
        budgets=asked,
        schema=schema,
        label=label,
        columns=columns,
        target=target,
        warnings=tuple(public),
        private_warnings=tuple(private),
        public=_public(job, columns, encoded.features[~trained & ~tested]),
        validation=_validation(job, columns, label, target),
        fingerprints={
            Path(path).name: hashlib.sha256(Path(path).read_bytes()).hexdigest()
            for path in read
            if path is not None
        },
    )
    _check_labels(people)
    return people


def _public(
    job: Job, columns: dict[str, Feature], declared: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32] | None:
    """Return the encoded public rows, without faulty ones; None where nothing is asked of them."""
    if job.training.method != "pate":
        return None
    features, path = declared, job.pate.public
    if path is not None:
        dialect = job.data.dialect_of(path)
        features = encode(read_table(path, dialect), columns, decimal=dialect.decimal).features
    usable = features[~np.isnan(features).any(axis=1)]
    if len(usable) < job.pate.asked:
        raise DataError(
            f"public: {len(usable)} usable rows for {job.pate.asked} questions; ask fewer with "
            "--questions, or declare more rows public"
        )
    return usable


def _labels(
    frame: pd.DataFrame, label: str, target: Categorical | Numeric, decimal: str
) -> AnyArray:
    """Return what is predicted of each row: positions of classes, or numbers."""
    if isinstance(target, Numeric):
        return encode_numbers(frame, label, decimal=decimal)
    return encode_labels(frame, label, target.values)


def _validation(
    job: Job, columns: dict[str, Feature], label: str, target: Categorical | Numeric
) -> Examples | None:
    """Return the usable public rows that a search scores on; None where it has none."""
    path = job.search.validation
    if path is None:
        return None
    dialect = job.data.dialect_of(path)
    frame = read_table(path, dialect)
    if label not in frame:
        frame = _with_schema(frame, job)[0]
    features = encode(frame, columns, decimal=dialect.decimal).features
    labels = _labels(frame, label, target, dialect.decimal)
    usable = np.isfinite(features).all(axis=1) & np.isfinite(labels)
    if not usable.any():
        raise DataError(f"validation {path}: has no usable row; give public rows with a label")
    return Examples(features[usable], labels[usable])


def _with_schema(frame: pd.DataFrame, job: Job) -> tuple[pd.DataFrame, Schema, str]:
    data = job.data
    if data.packaged and data.schema is None:
        return frame, packaged_schema(data.source), data.label or PACKAGED[data.source].label
    if data.label is None:
        raise InputError("label: missing; give --label with the name of the column to predict")
    select_column(frame, data.label, "label")
    if data.schema is not None:
        return frame, read_schema(data.schema), data.label
    match = match_packaged(list(frame.columns), data.label)
    if match is None:
        columns = (job.budgets.epsilon, data.ids, data.person, data.split)
        skip = "".join(f" --skip {c}" for c in columns if c)
        raise DataError(
            f"schema: none given and no packaged one fits {data.source}; ranges and categories "
            "must be public, not read from people's rows: write a template with "
            f"`apiece schema {data.source} --label {data.label}{skip} --out schema.toml`, fill it "
            "in, and pass --schema schema.toml"
        )
    schema, names = match
    return frame.rename(columns=names), schema, names[data.label]


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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Roster:
    """The units of a job: persons with any number of rows, or records, each a row of the data.

    What a unit has once, its budget and its part of the split, stands in the data or in a second
    table of persons.

    units: of the data. ids: (U,), theirs; None of records without. person: (n,), whose each row is;
    None where each row is a record. table: what says budgets and split. decimal: its decimal mark.
    stated: the same units, of that table's rows.
    """

    units: Units
    ids: npt.NDArray[np.str_] | None
    person: npt.NDArray[np.str_] | None
    table: pd.DataFrame
    decimal: str
    stated: Units

    def rows(self, chosen: Mask) -> Mask:
        """Return which rows of the data are of the chosen units."""
        return chosen[self.units.owner]


def read_units(frame: pd.DataFrame, data: Data) -> Roster:
    """Return the units of the data in `frame`.

    Raises `DataError` for ids that are empty or missing, repeated ids of records, and a table of
    persons that is not of the persons in the data.

    >>> import pandas as pd
    >>> visits = pd.DataFrame({"who": ["bob", "ann", "bob"]})
    >>> units = read_units(visits, Data(source="visits.csv", person="who"))
    >>> units.ids.tolist(), units.rows(np.array([False, True])).tolist()
    (['ann', 'bob'], [True, False, True])
    """
    table, dialect = frame, data.dialect_of(data.source)
    if data.person is None:
        ids = None
        if data.ids is not None:
            try:
                ids = read_ids(frame, data.ids).astype(str)
            except DataError as error:
                if "occurs" not in str(error):
                    raise
                raise DataError(
                    f"{error}; or where a person may have several rows, pass --person {data.ids} "
                    "in place of --ids"
                ) from None
        row = np.arange(len(frame))
        records = Units(row if ids is None else ids, row)
        return Roster(records, ids, None, table, dialect.decimal, records)
    persons = stated = Units.of_column(frame, data.person)
    if data.people is not None:
        dialect = data.dialect_of(data.people)
        table = read_table(data.people, dialect)
        stated = Units.of_column(table, data.person)
        persons.require_same(stated, here=data.source, there=data.people)
    person = persons.ids[persons.owner]
    return Roster(persons, persons.ids, person, table, dialect.decimal, stated)


def split(units: Roster, data: Data, seed: int | None) -> Mask:
    """Return the units that are trained on: by the split column, or by one coin a unit."""
    # seed: of the coins; None for fresh ones. A person's coin is a function of their id and of a
    # key from the seed: nobody else's presence or rows change it. Raises `DataError` for a split
    # column that says something else, or two things of one person, and where nothing is left to
    # train on.
    name = data.split_column
    random = np.random.default_rng(seed)
    if name is not None:
        cells = [str(cell) for cell in read_texts(select_column(units.table, name, "split"))]
        parts = [_PARTS.get(cell.lower()) for cell in cells]
        bad = [row for row, part in enumerate(parts) if part is None]
        if bad:
            raise DataError(
                f"split column {name!r}, row {bad[0] + 1} = {cells[bad[0]]!r}: must be 'train' "
                f"or 'test' ({len(bad)} such rows)"
            )
        trained = units.stated.once(np.array(parts, dtype=bool), f"split column {name!r}")
    elif data.person is not None and units.ids is not None:
        trained = _coins(units.ids, random.bytes(32)) >= data.test_share
    else:
        trained = random.random(len(units.units)) >= data.test_share
    if not trained.any():
        raise DataError(f"{data.source}: no record is left for training; change the split")
    return np.asarray(trained)


def declared_public(units: Roster, held: Mask, share: float, seed: int | None) -> Mask:
    """Return which of the held-out units are declared public, by one coin a unit."""
    # held: (U,), which of them are held out. share: that is declared public. seed: as of `split`.
    # Raises `DataError` where no unit is public.
    random = np.random.default_rng(None if seed is None else [seed, 1])
    coins = random.random(held.size) if units.ids is None else _coins(units.ids, random.bytes(32))
    public = held & (coins < share)
    if not public.any():
        raise DataError(
            f"public_share = {share:g}: of {int(held.sum())} held-out units none is public; hold "
            "out more, or give a table of public rows with --public"
        )
    return public


def _coins(ids: npt.NDArray[np.str_], key: bytes) -> Floats:
    """Return a uniform number in [0, 1) for each id, a keyed hash of it."""
    words = [hashlib.blake2b(i.encode(), key=key, digest_size=8).digest() for i in ids.tolist()]
    return np.frombuffer(b"".join(words), dtype="<u8") / 2.0**64


def budgets(units: Roster, asked: BudgetColumns, trained: Mask) -> Budgets:
    """Return the budgets of the trained units; every row that states one is checked first."""
    # trained: (U,), which of them are trained on. Raises `DataError` for rows of one person that
    # differ, naming nobody; `BudgetError` for what is no budget or none of the declared levels.
    said = read_budgets(
        units.table,
        epsilon=asked.epsilon,
        delta=asked.delta,
        levels=asked.levels,
        no_limit_cap=asked.no_limit_cap,
        decimal=units.decimal,
        once=units.stated.once,
    )
    columns = {name: each[trained] if np.ndim(each) else each for name, each in said.items()}
    if asked.groups:
        rows = [(g.name, apply_cap(g.epsilon, asked.no_limit_cap), g.share) for g in asked.groups]
        # Who is in which simulated group is no secret: it is drawn from a fixed seed.
        simulated = Budgets.from_groups(rows, int(trained.sum()), 0.5, seed=0)
        columns |= {"epsilon": simulated.epsilon, "labels": simulated.labels}
    return Budgets(**columns, ids=None if units.ids is None else units.ids[trained])


# Doubts: what in a table and its schema looks like a mistake.


def roles(job: Job, label: str) -> dict[str, str]:
    """Return the columns that are no features, and what each is instead."""
    # Raises `InputError` where one column is given two roles.
    data, delta, role_of = job.data, job.budgets.delta, {label: "label"}
    given = {"epsilon": job.budgets.epsilon, "delta": delta if isinstance(delta, str) else None}
    given |= {role: getattr(data, role) for role in ("ids", "person", "split")}
    for role, name in given.items():
        if name in role_of:
            raise InputError(
                f"column {name!r}: given both as {role_of[name]} and as {role}; name one column "
                "each"
            )
        if name is not None:
            role_of[name] = role
    return role_of


def refuse_too_wide(columns: Columns, rows: int) -> None:
    """Raise `DataError` where the features would not fit into memory, with the widest column."""
    widths = {n: len(k.values) if isinstance(k, Categorical) else 1 for n, k in columns.items()}
    size = 4 * rows * sum(widths.values())
    if size > MOST_BYTES:
        widest = max(widths, key=lambda name: widths[name])
        raise DataError(
            f"features: {sum(widths.values())} for {rows} records are {size / 2**30:.1f} GiB; "
            f"column {widest!r} alone declares {widths[widest]} values: merge them, or declare it "
            'kind = "skip"'
        )


def refuse_unread(frame: pd.DataFrame, columns: Columns, encoded: Encoded, decimal: str) -> None:
    """Raise `DataError` for a feature that could be read in no row at all."""
    for name, count in encoded.unread.items():
        if count < len(frame):
            continue
        kind, first = columns[name], str(read_texts(select_column(frame, name, "feature"))[0])
        if isinstance(kind, Date):
            why = (
                f"in every row it is empty or no date written as {kind.format!r} (the first: "
                f"{first!r}); give its format, mend the column, "
            )
        elif not isinstance(kind, Categorical):
            comma = decimal == "." and re.fullmatch(r"-?\d+,\d+", first)
            why = (
                f"in every row it is empty, infinite or no number (the first: {first!r}); "
                + ("if the comma is the decimal mark, pass --decimal ,; " if comma else "")
                + "mend the column, "
            )
        else:
            shown = ", ".join(repr(v) for v in kind.values[:4])
            case = "case matters; " if _but_for_case(frame, name, kind) else ""
            why = (
                f"no cell is one of the declared values (the first: {first!r}; declared: {shown}); "
                f"{case}mend the schema's values, "
            )
        raise DataError(f'feature column {name!r}: {why}or declare it kind = "skip"')


def of_rows(
    frame: pd.DataFrame, columns: Columns, encoded: Encoded, decimal: str, *, with_ids: bool
) -> list[str]:
    """Return what looks like a mistake in the rows: data about people, one line each."""
    doubts, size = [], len(frame)
    for name, count in encoded.unread.items():
        kind, what, hint = columns[name], "finite number", ""
        if not count:
            continue
        if isinstance(kind, Categorical):
            cased, what = _but_for_case(frame, name, kind), "declared value"
            hint = f", {cased} of them but for their case" if cased else ""
        elif isinstance(kind, Date):
            what = "date"
        words = read_texts(select_column(frame, name, "feature"))
        empty = int((words == "").sum())
        if isinstance(kind, Numeric) and decimal == ".":
            commas = sum(re.fullmatch(r"-?\d+,\d+", word) is not None for word in words)
            if commas:
                hint = f", {commas} of them with a comma: if it is the decimal mark, --decimal ,"
        if empty and "" not in list_markers(kind.missing):
            hint += f", {empty} of them empty: declare missing = true to learn from such rows"
        doubts.append(f"column {name!r}: {count} of {size} cells are no {what}{hint}")
    for name, count in encoded.outside.items():
        if count:
            hint = "; is the range in other units?" if count == size else ""
            doubts.append(
                f"column {name!r}: {count} of {size} cells lie outside their declared range and "
                f"are clipped{hint}"
            )
        cells = select_column(frame, name, "feature")
        if size >= 20 and cells.is_unique and all(c.isdecimal() for c in read_texts(cells)):
            doubts.append(
                f"column {name!r}: a different whole number in every row, like an id; is it one?"
            )
    if not with_ids and (copies := int(frame.duplicated().sum())):
        doubts.append(
            f"{copies} rows are exact copies of others; without --ids or --person every row is "
            "promised its budget, and a person with several rows gets several"
        )
    return doubts


def _but_for_case(frame: pd.DataFrame, name: str, kind: Categorical) -> int:
    """Return how many cells are no declared value but would be in another case."""
    alike = {value.casefold() for value in kind.values}
    cells = select_column(frame, name, "feature")
    places, absent = locate_values(cells, kind.values, list_markers(kind.missing))
    unknown = cells[(places < 0) & ~absent]
    return sum(cell.casefold() in alike for cell in read_texts(unknown).tolist())
