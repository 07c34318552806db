"""synthesize from end to end: budgets, persons, ledgers, checkpoints, files and pages."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("mbi", reason="needs the extra synthesis")

from apiece import Budgets, Ledger, Synthetic, synthesize
from apiece.datasets import Boolean, Categorical, Numeric, Schema
from apiece.errors import AnalysisError, DataError, InputError, StateError, StewardWarning
from apiece.synthesis.statement import require_bound

SCHEMA = Schema(
    {
        "age": Numeric(0, 89),
        "town": Categorical(("A", "B"), missing=("?",)),
        "married": Boolean(),
    }
)
PERSONS = Schema({**SCHEMA.columns}, person="id", rows_per_person=2)


def make_people(rows=3000, seed=0):
    generator = np.random.default_rng(seed)
    age = generator.integers(0, 90, rows)
    return pd.DataFrame(
        {
            "id": [f"p{k:05d}" for k in range(rows)],
            "age": age,
            "town": np.where(age < 30, "A", generator.choice(["B", "?"], rows)),
            "married": (age >= 18) & (generator.random(rows) < 0.5),
        }
    )


def make_budgets(rows=3000, ids=None, levels=(0.5, 1.0, 3.0)):
    return Budgets(np.resize(levels, rows), 1e-6, ids=ids)


@pytest.fixture(scope="module")
def made():
    people = make_people()
    budgets = make_budgets()
    return people, synthesize(
        people, SCHEMA, budgets, bins=6, rules=["age < 18 and married = true"], seed=1
    )


def test_rows_are_like_the_real_ones_and_keep_the_rule(made) -> None:
    people, synthetic = made
    rows = synthetic.frame(6000, seed=0)
    assert not (rows["married"] & (rows["age"] < 18)).any()
    assert abs(rows["age"].mean() - people["age"].mean()) < 3
    young = rows[rows["age"] < 30]
    assert (young["town"] == "A").mean() > 0.9
    assert rows["town"].isna().any()
    assert abs(synthetic.rows - 3000) < 200


def test_everybody_spends_their_own(made) -> None:
    _, synthetic = made
    charges = synthetic.charges
    assert (charges.epsilon_spent() <= charges.epsilon).all()
    assert (charges.spent > 0.99 * charges.limit).all()
    assert charges.weight[-1] == pytest.approx(1)


def test_a_count_has_an_interval_that_holds(made) -> None:
    people, synthetic = made
    real = int((people["town"] == "A").sum())
    count = synthetic.count({"town": "A"}, confidence=0.999)
    assert count.measurements > 0
    low, high = count.interval
    # Weighted people are a part of all: consent here does not depend on the data.
    assert low - 150 < real < high + 150
    with pytest.raises(InputError, match="cell of 'town'"):
        synthetic.count({"town": "C"})
    with pytest.raises(InputError, match="column"):
        synthetic.count({"city": "A"})


def test_a_file_gives_the_same_rows_and_no_check(made, tmp_path) -> None:
    _, synthetic = made
    path = synthetic.save(tmp_path / "model.json")
    loaded = Synthetic.load(path)
    pd.testing.assert_frame_equal(loaded.frame(50, seed=4), synthetic.frame(50, seed=4))
    assert loaded.check is None
    with pytest.raises(InputError, match="no real rows"):
        loaded.report()
    assert loaded.report("public").html == synthetic.report("public").html
    data = json.loads(path.read_text())
    data["charges"]["spent"][0] = 9e9
    (tmp_path / "forged.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match="more than it allows"):
        Synthetic.load(tmp_path / "forged.json")


def test_the_internal_page_has_real_errors_and_the_public_one_has_none(made) -> None:
    _, synthetic = made
    internal = synthetic.report().html
    public = synthetic.report("public").html
    assert "real against synthetic" in internal
    assert "real against synthetic" not in public
    assert "How far levels of consent differ" not in public
    assert "no sample" in public


def test_a_statement_is_bound_to_its_table(made, tmp_path) -> None:
    _, synthetic = made
    table = tmp_path / "table.csv"
    synthetic.frame(10, seed=0).to_csv(table)
    statement = synthetic.statement(table)
    require_bound(statement, table)
    table.write_text(table.read_text() + "\n")
    with pytest.raises(DataError, match="not the table"):
        require_bound(statement, table)
    with pytest.raises(DataError, match="was changed"):
        require_bound({**statement, "promise": "nothing"}, table)


def test_a_checkpoint_goes_on_where_it_stopped(tmp_path) -> None:
    people = make_people(800)
    budgets = make_budgets(800)
    path = tmp_path / "state.json"

    class StopError(Exception):
        pass

    def stop(step):
        if step.round == 3:
            raise StopError

    whole = synthesize(people, SCHEMA, budgets, bins=4, seed=2, rake=0.2)
    with pytest.raises(StopError):
        synthesize(
            people, SCHEMA, budgets, bins=4, seed=2, rake=0.2, checkpoint=path, progress=stop
        )
    resumed = synthesize(people, SCHEMA, budgets, bins=4, seed=2, rake=0.2, checkpoint=path)
    first, second = whole.measurements, resumed.measurements
    assert [m.clique for m in first] == [m.clique for m in second]
    np.testing.assert_allclose(first[-2].values, second[-2].values)
    assert (resumed.charges.spent <= resumed.charges.limit).all()
    with pytest.raises(StateError, match="another synthesis"):
        synthesize(people, SCHEMA, budgets, bins=5, seed=2, rake=0.2, checkpoint=path)


def test_a_ledger_pays_once_and_leaves_out_who_cannot(tmp_path) -> None:
    people = make_people(600)
    people["id"] = [f"p{k}" for k in range(600)]
    schema = Schema({**SCHEMA.columns}, person="id", rows_per_person=1)
    budgets = make_budgets(600, ids=people["id"].to_numpy(), levels=(0.5, 1.0))
    ledger = Ledger.make(
        f"{tmp_path}/people.db", people["id"].tolist()[:-2], budgets.epsilon[:-2], 1e-6
    )
    ledger.reserve("before", ["p0"], 1.0, 200.0)
    with pytest.warns(StewardWarning, match="3 of 600 people"):
        synthetic = synthesize(
            people, schema, budgets, bins=4, seed=2, ledger=ledger, analysis_id="table"
        )
    assert synthetic.check["rows"] == 597
    spent = ledger.spent(["p1", "p2", "p599".replace("599", "5")])
    assert (spent > 0).all()
    assert (ledger.remaining(["p1", "p2"]) < 1e-6).all()
    with pytest.raises(InputError, match="was made"):
        synthesize(people, schema, budgets, bins=4, ledger=ledger, analysis_id="table")
    with pytest.raises(AnalysisError):
        synthesize(people, schema, budgets, bins=5, ledger=ledger, analysis_id="table")


def test_persons_with_many_rows_are_bounded_by_their_own_coins() -> None:
    people = make_people(900)
    people["id"] = [f"p{k // 3}" for k in range(900)]
    ids = np.unique(people["id"])
    with pytest.warns(StewardWarning, match="300 beyond rows_per_person"):
        synthetic = synthesize(
            people, PERSONS, make_budgets(300, ids=ids), bins=4, seed=3, workload="columns"
        )
    assert synthetic.check["rows"] == 600
    assert abs(synthetic.rows - 600) < 300


def test_rows_that_are_not_as_declared_and_strangers_do_not_count() -> None:
    people = make_people(500).astype(object)
    people.loc[4, "town"] = "C"
    people.loc[7, "age"] = "old"
    with pytest.warns(StewardWarning, match="2 with a cell"):
        synthetic = synthesize(
            people, SCHEMA, make_budgets(500), bins=4, seed=3, workload="columns"
        )
    assert synthetic.check["rows"] == 498


def test_raking_brings_back_who_gave_little() -> None:
    """Consent that depends on the data: the old give small budgets."""
    people = make_people(6000)
    epsilon = np.where(people["age"] >= 60, 0.3, 2.0)
    budgets = Budgets(epsilon, 1e-6)
    shares = {}
    for rake in (None, 0.3):
        synthetic = synthesize(people, SCHEMA, budgets, bins=9, seed=5, rake=rake)
        shares[rake] = float((synthetic.frame(8000, seed=0)["age"] >= 60).mean())
    real = float((people["age"] >= 60).mean())
    assert shares[None] < real - 0.15
    assert abs(shares[0.3] - real) < 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workload": "all"}, "workload"),
        ({"rake": 1.5}, "rake"),
        ({"rounds": 2}, "rounds = 2"),
        ({"seed": -1}, "seed"),
        ({"analysis_id": "x"}, "give ledger too"),
        ({"model_megabytes": 0}, "model_megabytes"),
        ({"left_out": ["age", "town", "married"]}, "no column"),
    ],
)
def test_refusals(settings, message) -> None:
    with pytest.raises((InputError, DataError), match=message):
        synthesize(make_people(50), SCHEMA, make_budgets(50), **settings)


def test_budgets_are_of_each_row() -> None:
    with pytest.raises(InputError, match="of 40 records for 50 rows"):
        synthesize(make_people(50), SCHEMA, make_budgets(40))


def show_public(people, budgets):
    """All that is public of a synthesis: what no row may decide."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StewardWarning)
        synthetic = synthesize(
            people,
            PERSONS,
            budgets,
            bins=4,
            rules=["age < 18 and married = true"],
            seed=3,
            rounds=4,
        )
    first = synthetic.measurements[: len(synthetic.domain.sizes)]
    columns = synthetic.domain.columns
    return {
        "public": synthetic.public,
        "names": synthetic.domain.names,
        "cells": [list(column.labels) for column in columns],
        "first": [(m.clique, m.noise_stddev, m.values.size) for m in first],
        "promise": synthetic.promise(),
        "weights": synthetic.charges.weight.tolist(),
        "limits": synthetic.charges.limit.tolist(),
        "columns": list(synthetic.frame(3, seed=0).columns),
    }


def test_what_is_public_does_not_follow_from_rows(monkeypatch) -> None:
    """200 neighbours, each without a person or with one who has rows of their own."""
    from apiece.synthesis import front

    # The last fit is a function of what was released, and is slow.
    monkeypatch.setattr(front, "fit_model", lambda draft, measurements: draft)
    people = make_people(300).astype({"age": object})
    people["id"] = [f"p{k // 2}" for k in range(300)]
    ids = [f"p{k}" for k in range(151)]
    budgets = make_budgets(151, ids=np.array(ids))
    expected = show_public(people, budgets)
    strange = [-5, 10**9, "old", None, 17.5]
    for pair in range(200):
        if pair < 150:
            neighbour = people[people["id"] != f"p{pair}"]
        else:
            age = strange[pair % len(strange)]
            row = {"id": "p150", "age": age, "town": f"T{pair}", "married": pair % 2 == 0}
            neighbour = pd.concat([people, pd.DataFrame([row])], ignore_index=True)
        assert len(neighbour) != len(people)
        assert show_public(neighbour, budgets) == expected, pair


@pytest.mark.slow
def test_a_count_has_an_interval_for_who_asked_for_how_much() -> None:
    """Budgets that have nothing to do with rows: the interval holds as often as it says."""
    schema = Schema({"works": Boolean()})
    works = np.arange(400) < 160
    people = pd.DataFrame({"works": works})
    held = 0
    held_by_noise = 0
    for seed in range(40):
        epsilon = np.random.default_rng(seed).permutation(np.resize([0.5, 8.0], 400))
        synthetic = synthesize(
            people, schema, Budgets(epsilon, 1e-5), seed=seed, workload="columns", rounds=4
        )
        count = synthetic.count({"works": "True"})
        low, high = count.interval
        held += low <= 160 <= high
        public = {**synthetic.public, "weight_variation": 0.0}
        low, high = replace(synthetic, public=public).count({"works": "True"}).interval
        held_by_noise += low <= 160 <= high
    assert held >= 34, held
    assert held_by_noise < 34, "weights vary enough that noise alone is too little"
