"""People: each row read by itself, split with its person, and what cannot be learned refused."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.datasets import load
from apiece.errors import DataError, InputError
from apiece.jobs.config import Data, job_from_dict
from apiece.jobs.people import Examples, read_people
from apiece.jobs.roster import choose_public, choose_trained, read_roster

from .small import SIZE, job


def test_rows_are_split_and_their_budgets_stay_in_their_order(tmp_path: Path) -> None:
    people = read_people(job(tmp_path))
    at = np.arange(SIZE)
    trained = at[at % 4 > 0]
    assert people.budgets.epsilon.tolist() == np.where(trained % 2, 2.0, 8.0).tolist()
    assert (people.train.units, people.test.units) == (45, 15)
    assert people.declaration.classes == ("no", "yes")
    assert people.group_of_rows.tolist() == people.budgets.group_index.tolist()
    both = np.concatenate([people.train.features, people.test.features])
    assert (people.train.labels == (people.train.features[:, 0] > 0)).all()
    assert both.shape == (SIZE, 1)
    bytes_ = (tmp_path / "people.csv").read_bytes()
    assert people.fingerprints == {"people.csv": hashlib.sha256(bytes_).hexdigest()}


def test_files_beside_a_packaged_table_have_fingerprints(tmp_path: Path) -> None:
    wishes = tmp_path / "wishes.csv"
    pd.DataFrame({"ID": load("credit_default")["ID"], "wish": 2.0}).to_csv(wishes, index=False)
    changes = {"source": "credit_default", "person": "ID", "people": str(wishes),
               "rows_per_person": 1, "epsilon": "wish", "delta": 1e-6}  # fmt: skip
    people = read_people(job_from_dict({}, name="x", changes=changes))
    digest = hashlib.sha256(wishes.read_bytes()).hexdigest()
    assert people.fingerprints == {"wishes.csv": digest}


@pytest.mark.parametrize("column", [None, "ids", "person"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_shares_that_coins_draw_are_those_that_were_asked(column: str | None, share: float) -> None:
    """Of the held out, and among these of the public ones: the two coins are independent."""
    size = 4000
    frame = pd.DataFrame({"who": [f"p{i}" for i in range(size)]})
    roles: dict[str, Any] = {} if column is None else {column: "who"}
    data = Data(source="t.csv", test_share=share, **roles)
    units = read_roster(frame, data)

    def is_near(count: int, of: int, chance: float) -> bool:
        return abs(count - of * chance) <= 5 * (of * chance * (1 - chance)) ** 0.5

    for seed in (0, 1):
        held_out = ~choose_trained(units, data, seed)
        assert is_near(int(held_out.sum()), size, share)
        for public_share in (0.2, 0.7):
            public = choose_public(units, held_out, public_share, seed)
            assert not (public & ~held_out).any()
            assert is_near(int(public.sum()), int(held_out.sum()), public_share)


def test_the_rows_of_persons_are_of_the_group_of_their_person(tmp_path: Path) -> None:
    def twice(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([frame, frame[::-2]])

    people = read_people(job(tmp_path, twice, person="who"))
    assert people.train.person is not None
    asked = dict(zip(people.budgets.ids.tolist(), people.budgets.group_index, strict=True))
    expected = [asked[who] for who in people.train.person.tolist()]
    assert people.group_of_rows.tolist() == expected
    assert people.train.units == len(people.budgets) == 45
    assert len(people.train.labels) > 45


@pytest.mark.parametrize("drawn", [0, 1])
def test_a_drawn_split_is_a_function_of_its_coins(drawn: int, tmp_path: Path) -> None:
    one = job(tmp_path, split=None, seed=drawn)
    assert one.data.split is None or one.data.split_column is None
    same = [read_people(one, coins).train.features.tolist() for coins in (None, drawn, 7)]
    assert same[0] == same[1] != same[2]


rows = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=12)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_everyone_stays_with_their_usable_rows_or_one_that_is_faulty(
    each: list[tuple[str, bool]], random: Any
) -> None:
    random.shuffle(each)
    features = np.array([[np.nan if bad else float(i)] for i, (_, bad) in enumerate(each)], "f4")
    person = np.array([who for who, _ in each])
    kept = Examples(features, np.arange(len(each)), person).without_faulty()
    assert kept.person is not None
    for who in set(person.tolist()):
        usable = [i for i, (name, bad) in enumerate(each) if name == who and not bad]
        own = kept.labels[kept.person == who].tolist()
        assert own == usable if usable else len(own) == 1
    assert Examples(features, np.arange(len(each))).without_faulty().labels.size == len(each)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.assign(answer="no"), "every training record is 'no'; one class cannot"),
        (lambda t: t.assign(age="?"), "age"),
        (
            lambda t: t.assign(answer=np.where(t["part"] == "test", "yes", "no")),
            "one class cannot be learned",
        ),
        (lambda t: t.assign(answer="maybe"), "not a declared class"),
        (lambda t: t.drop(columns="age"), "'age'"),
        (lambda t: t.drop(columns="answer"), "'answer'"),
    ],
)
def test_tables_from_which_nothing_is_learned(
    change: Callable[[pd.DataFrame], pd.DataFrame], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        read_people(job(tmp_path, change))


def test_a_class_that_is_tested_and_never_seen_is_refused(tmp_path: Path) -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(answer=np.where(frame.index == 0, "perhaps", frame["answer"]))

    one = job(tmp_path, change)
    schema = tmp_path / "schema.toml"
    schema.write_text(schema.read_text().replace('"yes"]', '"yes", "perhaps"]'))
    with pytest.raises(DataError, match="'perhaps' is in the test records and never in training"):
        read_people(one)


def test_label_and_schema_are_asked_for_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label: missing; give --label"):
        read_people(job(tmp_path, label=None))
    with pytest.raises(DataError, match=r"schema .*people\.csv --label answer --skip budget"):
        read_people(job(tmp_path, schema=None))


def test_warnings_about_rows_are_kept_apart_from_public_ones(tmp_path: Path) -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(age=np.where(frame.index == 1, "secret", frame["age"]))

    people = read_people(job(tmp_path, change))
    assert "column 'age': 1 of 60 cells are no finite number" in people.private_warnings
    assert not any("60" in told or "secret" in told for told in people.warnings)
    assert "p01" not in repr(people)
