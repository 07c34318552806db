"""What belongs to a person is joined by identity, at every door that takes it.

The table has a row for each parameter of a public callable with an entry a record or a person. Each
is given a Series with the right index, the same in another order, one of other people, an array and
a list. A second test reads the signatures of all public names: a parameter of such a name that has
neither a row here nor a reason not to is an error.
"""

from __future__ import annotations

import ast
import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from apiece import Budgets, GaussianFilter, Ledger, Odometer, RenyiFilter, Scale, Trainer, assign
from apiece import clip_and_sum as clip
from apiece.accounting import epsilons, noise_multipliers, sampling_probabilities
from apiece.adapters.federation import Federation, charge
from apiece.assignment import assign_owned
from apiece.audit import ShadowScores, lira, one_run, one_run_by_group, rmia, roc_by_group
from apiece.audit.findings import ModelScores
from apiece.audit.shadows import Pool, ShadowJob
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Ownership
from apiece.errors import DataError
from apiece.filters import Costs
from apiece.ledger import LedgerFilter
from apiece.pate import Lessons, plan_votes, teach
from apiece.plan import BoundPlan
from apiece.sensitivity import Expression, exhaustion, loss_shares, partial_sensitivity
from apiece.sklearn import Numeric, PrivateClassifier, PrivateImageClassifier, PrivateRegressor
from apiece.training import FilteredTrainer, make_private
from apiece.training.stacked import StackedMlp
from tests.sample_estimators import classifier, features
from tests.sample_estimators import people as table_of_people

SOURCE = Path(__file__).parents[2] / "src" / "apiece"
N = 24
NAMES = [f"p{i:02d}" for i in range(N)]
SHUFFLED = np.random.default_rng(0).permutation(N)
BY_NAME, BY_POSITION = pd.Index(NAMES), pd.RangeIndex(N)
HALF = np.arange(N) % 2 == 0
ONES = np.ones(N)
LEVELS = np.where(HALF, 1.0, 2.0)
ROWS = torch.eye(N), torch.zeros(N)


class ReachedError(Exception):
    """A call got past its checks; nothing is planned or trained here."""


@dataclass(frozen=True)
class Entry:
    """A parameter, what its value is, whose index it must have, and how it is called."""

    name: str
    values: Any
    labels: pd.Index
    call: Callable[[Any], object]
    listed: bool = True  # whether a list will do in place of an array


def frame(index: pd.Index = BY_NAME) -> pd.DataFrame:
    return pd.DataFrame({"a": np.linspace(0, 1, N)}, index=index)


ANSWERS = np.where(HALF, "no", "yes")
AGES = np.where(HALF, "old", "young")


def fitted(**given: Any) -> object:
    X = given.pop("X", frame())
    y = given.pop("y", ANSWERS)
    given = {"epsilon": 1.0, **given}
    return PrivateClassifier(["no", "yes"], Numeric(0, 1), delta=1e-3).fit(X, y, **given)


@cache
def a_classifier() -> PrivateClassifier:
    model = PrivateClassifier(["no", "yes"], Numeric(0, 1), delta=1e-3, steps=1, random_state=0)
    return model.fit(frame(), ANSWERS, epsilon=1.0)


@cache
def a_regressor() -> PrivateRegressor:
    model = PrivateRegressor(Numeric(0, 1), Numeric(0, 1), delta=1e-3, steps=1, random_state=0)
    return model.fit(frame(), np.linspace(0, 1, N), epsilon=1.0)


def images(**given: Any) -> object:
    y = pd.Series(ANSWERS, index=BY_NAME)
    X = np.zeros((N, 1, 8, 8), np.uint8)
    return PrivateImageClassifier(["no", "yes"], delta=1e-3).fit(X, y, **{"epsilon": 1.0, **given})


@cache
def plan() -> BoundPlan:
    asked = Budgets(LEVELS, 1e-3, ids=NAMES)
    return assign(asked, Scale(), steps=2, expected_batch_size=6, clip_norm=1.0)


def trainer(*, unit: str = "record", **given: Any) -> Trainer:
    model = nn.Linear(N, 1)
    loss = nn.MSELoss(reduction="none")
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    x, y = ROWS
    return Trainer(model, sgd, lambda out, t: loss(out[:, 0], t), plan(), (x, y), seed=0, **given)


def withdrawing(left: Any) -> object:
    run = trainer(withdrawn=lambda: left)
    return run.step()


def filtered(accounts: Any, **given: Any) -> object:
    model = nn.Linear(N, 1)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    loss = nn.MSELoss(reduction="none")
    options = {"clip_norm": 1.0, "noise_stddev": 50.0, "seed": 0, **given}
    return FilteredTrainer(model, sgd, lambda out, t: loss(out[:, 0], t), accounts, ROWS, **options)


def one_adapter(people: Any) -> object:
    model = nn.Linear(N, 2)
    data = torch.utils.data.TensorDataset(torch.eye(N), torch.zeros(N, dtype=torch.long))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    asked = Budgets(1.0, 1e-3, ids=NAMES)
    options = {"epochs": 1, "clip_norm": 1.0, "seed": 0}
    return make_private(model, sgd, nn.CrossEntropyLoss(), loader, asked, people=people, **options)


COUNTER = itertools.count()


@cache
def folder() -> str:
    return tempfile.mkdtemp()


def new_ledger(epsilon: Any = 1.0, delta: Any = 1e-5, **given: Any) -> Ledger:
    return Ledger.make(f"{folder()}/{next(COUNTER)}.db", NAMES, epsilon, delta, **given)


@cache
def ledger() -> Ledger:
    return new_ledger()


def enrolled(**given: Any) -> int:
    return ledger().enroll(NAMES, **{"epsilon": 1.0, "delta": 1e-5, **given})


def reserved(norms: Any) -> object:
    return ledger().reserve(f"q{next(COUNTER)}", NAMES, norms, 500.0)


def reserved_everyone(norms: Any) -> object:
    def own(ids: Any) -> Any:
        where = [NAMES.index(str(name)) for name in ids]
        return norms.iloc[where] if hasattr(norms, "iloc") else np.asarray(norms)[where]

    return ledger().reserve_everyone(f"e{next(COUNTER)}", own, 500.0)


@cache
def federation() -> Federation:
    return Federation(2, 0.5, 1.0, 50.0, (0.1, 0.2), 4.0)


@cache
def votes() -> Any:
    asked = Budgets(LEVELS, 1e-3, ids=NAMES)
    return plan_votes(asked, "uniform", teachers=4, questions=2)


@cache
def votes_of_persons() -> Any:
    asked = Budgets(LEVELS, 1e-3, ids=NAMES)
    return plan_votes(asked, "uniform", teachers=4, questions=2, unit="person")


def taught(by_person: bool = False, **given: Any) -> object:
    of = votes_of_persons() if by_person else votes()
    data = torch.rand(N, 1), (torch.arange(N) % 2).long()
    how: dict[str, Any] = {"classes": 2, "lessons": Lessons(steps=1), "seed": 0}
    return teach(of, StackedMlp((1, 2)), data, torch.rand(2, 1), **how, **given)


COINS = np.arange(8)[:, None] % 2 == np.arange(N) % 2
PHI = np.random.default_rng(1).normal(size=(8, N)) + COINS
INTEGERS = np.arange(N) % 2


def shadows(**given: Any) -> ShadowScores:
    fields = {"groups": INTEGERS, "included": COINS, "confidences": PHI, **given}
    return ShadowScores(BY_NAME.to_numpy(), **fields)


def pool(groups: Any = INTEGERS) -> Pool:
    return Pool(np.array(NAMES), torch.rand(N, 3), torch.zeros(N).long(), groups)


def job(**given: Any) -> ShadowJob:
    model = StackedMlp((3, 2))
    return ShadowJob(
        pool(), plan(), model, recipe=UpdateRule(), seed=0, **{"included": COINS, **given}
    )


@cache
def partial() -> Any:
    table = pd.DataFrame({"a": np.linspace(0.1, 1, N), "b": 0.5}, index=BY_NAME)
    return partial_sensitivity(Expression("a**2 + b", {"a": (0, 1), "b": (0, 1)}), table)


@cache
def graph() -> Ownership:
    return Ownership([[NAMES[i], NAMES[(i + 1) % N]] for i in range(N)])


def owned(limit: Any) -> object:
    asked = Budgets(1.0, 1e-3, ids=NAMES)
    how = {"steps": 2, "expected_batch_size": 4, "clip_norm": 1.0}
    return assign_owned(graph(), asked, "scale", limit=limit, **how)


def named(values: Any) -> pd.Series:
    return pd.Series(values, index=BY_NAME)


LOSS = nn.MSELoss(reduction="none")


def clipped(**given: Any) -> object:
    given = {"clip_norms": 1.0, **given}
    return clip(nn.Linear(N, 1), lambda out, t: LOSS(out[:, 0], t), *ROWS, **given)


SCORES = np.linspace(0, 1, N)
ESTIMATORS = ("PrivateClassifier", "PrivateRegressor")
TABLE = [
    # estimators: the rows' index is that of X, or where X is an array that of y
    Entry("_Tabular.fit epsilon", ONES, BY_NAME, lambda v: fitted(epsilon=v)),
    Entry("_Tabular.fit delta", ONES * 1e-3, BY_NAME, lambda v: fitted(delta=v)),
    Entry("_Tabular.fit people", np.array(NAMES), BY_NAME, lambda v: fitted(people=v)),
    Entry("_Tabular.fit y", ANSWERS, BY_NAME, lambda v: fitted(y=v)),
    Entry(
        "_Tabular.fit epsilon, X an array and y a Series",
        ONES,
        BY_NAME,
        lambda v: fitted(X=frame().to_numpy(), y=named(ANSWERS), epsilon=v),
    ),
    Entry(
        "_Tabular.fit people, X and y arrays",
        np.array(NAMES),
        BY_POSITION,
        lambda v: fitted(X=frame().to_numpy(), people=v),
    ),
    Entry(
        "_Tabular.fit epsilon, words",
        np.array(["low", "high"])[INTEGERS],
        BY_NAME,
        lambda v: PrivateClassifier(
            ["no", "yes"], Numeric(0, 1), delta=1e-3, levels={"low": 1, "high": 2}
        ).fit(frame(), ANSWERS, epsilon=v),
    ),
    Entry(
        "PrivateRegressor.fit y",
        SCORES,
        BY_NAME,
        lambda v: PrivateRegressor(Numeric(0, 1), Numeric(0, 1), delta=1e-3).fit(
            frame(), v, epsilon=1.0
        ),
    ),
    Entry("_Classifies.score y", ANSWERS, BY_NAME, lambda v: a_classifier().score(frame(), v)),
    Entry(
        "_Classifies.score sample_weight",
        ONES,
        BY_NAME,
        lambda v: a_classifier().score(frame(), ANSWERS, v),
    ),
    Entry("PrivateRegressor.score y", SCORES, BY_NAME, lambda v: a_regressor().score(frame(), v)),
    Entry("PrivateImageClassifier.fit epsilon", ONES, BY_NAME, lambda v: images(epsilon=v)),
    Entry("PrivateImageClassifier.fit delta", ONES * 1e-3, BY_NAME, lambda v: images(delta=v)),
    Entry("Papers.report y", AGES, BY_NAME, lambda v: reported(v)),
    Entry(
        "Papers.report people",
        np.array(NAMES),
        BY_NAME,
        lambda v: reported(AGES, people=v),
    ),
    Entry(
        "Papers.save people",
        np.array(NAMES),
        BY_NAME,
        lambda v: reported(AGES, people=v, save=True),
    ),
    Entry("Papers.save y", AGES, BY_NAME, lambda v: reported(v, save=True)),
    # budgets
    Entry("Budgets epsilon", LEVELS, BY_NAME, lambda v: Budgets(v, 1e-5, ids=NAMES)),
    Entry("Budgets delta", ONES / 2, BY_NAME, lambda v: Budgets(named(LEVELS), v)),
    Entry("Budgets excess", ONES / 2, BY_NAME, lambda v: Budgets(1.0, 1e-5, excess=v, ids=NAMES)),
    Entry("Budgets labels", ANSWERS, BY_NAME, lambda v: Budgets(named(LEVELS), 1e-5, labels=v)),
    Entry(
        "Budgets ids, a column",
        np.array(NAMES),
        pd.Index(range(100, 100 + N)),
        lambda v: (
            Budgets(pd.Series(LEVELS, index=range(100, 100 + N)), 1e-5, ids=v)
            if hasattr(v, "index") and not isinstance(v, list)
            else Budgets(LEVELS, 1e-5, ids=v)
        ),
    ),
    Entry("Budgets.lowered_to epsilon", ONES / 2, BY_NAME, lambda v: _asked().lowered_to(v)),
    Entry("Budgets.taken which", HALF, BY_NAME, lambda v: _asked().taken(v)),
    Entry("Ownership owners", np.array(NAMES)[:, None].tolist(), BY_POSITION, Ownership),
    Entry("Ownership.select limit", np.ones(N, int), BY_NAME, lambda v: graph().select(v)),
    Entry("assign_owned limit", np.ones(N, int), BY_NAME, owned),
    # accountants and filters
    Entry(
        "noise_multipliers epsilon",
        LEVELS,
        BY_NAME,
        lambda v: noise_multipliers(
            epsilon=v, delta=named(ONES / 100), sampling_probability=1.0, steps=1
        ),
    ),
    Entry(
        "noise_multipliers delta",
        ONES / 100,
        BY_NAME,
        lambda v: noise_multipliers(
            epsilon=named(LEVELS), delta=v, sampling_probability=1.0, steps=1
        ),
    ),
    Entry(
        "sampling_probabilities epsilon",
        LEVELS,
        BY_NAME,
        lambda v: sampling_probabilities(
            epsilon=v, delta=named(ONES / 100), noise_multiplier=4.0, steps=1
        ),
    ),
    Entry(
        "sampling_probabilities delta",
        ONES / 100,
        BY_NAME,
        lambda v: sampling_probabilities(
            epsilon=named(LEVELS), delta=v, noise_multiplier=4.0, steps=1
        ),
    ),
    Entry(
        "epsilons delta",
        ONES / 100,
        BY_NAME,
        lambda v: epsilons(
            noise_multiplier=named(LEVELS), delta=v, sampling_probability=1.0, steps=1
        ),
    ),
    Entry("GaussianFilter epsilon", LEVELS, BY_NAME, lambda v: GaussianFilter(v, named(ONES / 9))),
    Entry("GaussianFilter delta", ONES / 9, BY_NAME, lambda v: GaussianFilter(named(LEVELS), v)),
    Entry("RenyiFilter epsilon", LEVELS, BY_NAME, lambda v: RenyiFilter(v, named(ONES / 9))),
    Entry("RenyiFilter delta", ONES / 9, BY_NAME, lambda v: RenyiFilter(named(LEVELS), v)),
    Entry(
        "RenyiFilter order", 90 * ONES, BY_NAME, lambda v: RenyiFilter(named(LEVELS), 0.1, order=v)
    ),
    Entry("Filter.admit norms", ONES, BY_NAME, lambda v: _accounts().admit(v, 50.0)),
    Entry("Filter.noise_stddev clip_norm", ONES, BY_NAME, lambda v: _accounts().noise_stddev(v, 2)),
    Entry("Odometer.add norms", ONES, BY_POSITION, lambda v: Odometer(N, order=8).add(v, 9.0)),
    Entry("Costs.fixed loss", ONES, BY_NAME, lambda v: Costs.fixed(v, named(ONES / 9))),
    Entry("Costs.fixed slack", ONES / 9, BY_NAME, lambda v: Costs.fixed(named(ONES), v)),
    # ledger
    Entry("Ledger.make epsilon", LEVELS, BY_NAME, lambda v: new_ledger(v)),
    Entry("Ledger.make delta", ONES / 1e5, BY_NAME, lambda v: new_ledger(1.0, v)),
    Entry("Ledger.make slack", ONES / 10, BY_NAME, lambda v: new_ledger(slack=v)),
    Entry("Ledger.enroll epsilon", LEVELS, BY_NAME, lambda v: enrolled(epsilon=v)),
    Entry("Ledger.enroll delta", ONES / 1e5, BY_NAME, lambda v: enrolled(delta=v)),
    Entry("Ledger.enroll slack", ONES / 10, BY_NAME, lambda v: enrolled(slack=v)),
    Entry("Ledger.reserve norms", ONES, BY_NAME, reserved),
    Entry("Ledger.reserve_everyone norms", ONES, BY_NAME, reserved_everyone),
    Entry(
        "LedgerFilter.admit norms",
        ONES,
        BY_NAME,
        lambda v: LedgerFilter(ledger(), NAMES, f"run {next(COUNTER)}").admit(v, 500.0),
    ),
    Entry(
        "charge levels",
        INTEGERS,
        BY_NAME,
        lambda v: charge(ledger(), f"silo {next(COUNTER)}", NAMES, v, federation(), delta=1e-5),
    ),
    # training
    Entry("Trainer included", HALF, BY_NAME, lambda v: trainer(included=v)),
    Entry("Trainer withdrawn", HALF, BY_NAME, withdrawing, listed=False),
    Entry("Trainer people", np.array(NAMES), BY_POSITION, lambda v: trainer(people=v)),
    Entry("make_private people", np.array(NAMES), BY_POSITION, one_adapter),
    Entry("FilteredTrainer clip_norm", ONES, BY_NAME, lambda v: filtered(_accounts(), clip_norm=v)),
    Entry(
        "FilteredTrainer clip_norm, a ledger's accounts",
        ONES,
        BY_NAME,
        lambda v: filtered(LedgerFilter(ledger(), NAMES, "never run"), clip_norm=v),
    ),
    Entry(
        "FilteredTrainer people",
        np.arange(N),
        BY_POSITION,
        lambda v: filtered(_accounts(), people=v),
    ),
    Entry("clip_and_sum people", np.array(NAMES), BY_POSITION, lambda v: clipped(people=v)),
    Entry("clip_and_sum clip_norms", ONES, BY_POSITION, lambda v: clipped(clip_norms=v)),
    # PATE
    Entry("teach included", HALF | True, BY_NAME, lambda v: taught(included=v)),
    Entry("teach people", np.array(NAMES), BY_POSITION, lambda v: taught(True, people=v)),
    # audits
    Entry("one_run included", HALF, BY_NAME, lambda v: one_run(named(SCORES), v, delta=1e-5)),
    Entry("one_run scores", SCORES, BY_NAME, lambda v: one_run(v, _coins(v), delta=1e-5)),
    Entry(
        "one_run included, scores an array",
        HALF,
        BY_POSITION,
        lambda v: one_run(SCORES, v, delta=1e-5),
    ),
    Entry(
        "one_run_by_group included",
        HALF,
        BY_NAME,
        lambda v: one_run_by_group(named(SCORES), v, ANSWERS, delta=1e-5),
    ),
    Entry(
        "one_run_by_group groups",
        ANSWERS,
        BY_NAME,
        lambda v: one_run_by_group(named(SCORES), HALF, v, delta=1e-5),
    ),
    Entry(
        "one_run_by_group scores",
        SCORES,
        BY_NAME,
        lambda v: one_run_by_group(v, _coins(v), ANSWERS, delta=1e-5),
    ),
    Entry("lira target", SCORES, BY_NAME, lambda v: lira(v, shadows())),
    Entry("rmia target", SCORES, BY_NAME, lambda v: rmia(v, shadows(), [0.0], np.zeros((8, 1)))),
    Entry(
        "roc_by_group member",
        HALF,
        BY_NAME,
        lambda v: roc_by_group(named(SCORES), v, np.full(N, "a")),
    ),
    Entry(
        "roc_by_group groups",
        np.full(N, "a"),
        BY_NAME,
        lambda v: roc_by_group(named(SCORES), HALF, v),
    ),
    Entry(
        "roc_by_group scores",
        SCORES,
        BY_NAME,
        lambda v: roc_by_group(v, _coins(v), np.full(N, "a")),
    ),
    Entry("ShadowScores groups", ANSWERS, BY_NAME, lambda v: shadows(groups=v)),
    Entry("Pool groups", INTEGERS, BY_NAME, pool),
    Entry(
        "ModelScores.of people",
        np.array(NAMES),
        BY_NAME,
        lambda v: ModelScores.of(named(SCORES), people=v),
    ),
    Entry(
        "ModelScores.of groups",
        ANSWERS,
        BY_NAME,
        lambda v: ModelScores.of(named(SCORES), groups=v),
    ),
    # sensitivity
    Entry("loss_shares groups", ANSWERS, BY_NAME, lambda v: loss_shares(partial(), v)),
    Entry("exhaustion epsilon", LEVELS, BY_NAME, lambda v: exhausted(epsilon=v)),
    Entry("exhaustion delta", ONES / 9, BY_NAME, lambda v: exhausted(delta=v)),
    Entry("exhaustion ids", np.array(NAMES), BY_NAME, lambda v: exhausted(ids=v)),
    Entry(
        "partial_sensitivity records, a mapping",
        SCORES,
        BY_NAME,
        lambda v: partial_sensitivity(
            Expression("a**2 + b", {"a": (0, 1), "b": (0, 1)}), {"a": named(ONES), "b": v}
        ),
    ),
]
# Tables with a column a record.
WIDE = [
    Entry("ShadowScores included", COINS, BY_NAME, lambda v: shadows(included=v)),
    Entry("ShadowScores confidences", PHI, BY_NAME, lambda v: shadows(confidences=v)),
    Entry("ShadowJob included", COINS, BY_NAME, lambda v: job(included=v)),
    Entry("ShadowJob groups", COINS * 1, BY_NAME, lambda v: job(groups=v)),
]


def _asked() -> Budgets:
    return Budgets(LEVELS, 1e-5, ids=NAMES)


def _accounts() -> GaussianFilter:
    return GaussianFilter(named(LEVELS), 1e-5)


def _coins(scores: Any) -> Any:
    """The coins by name beside a Series, and by position beside what has no index."""
    return named(HALF) if hasattr(scores, "iloc") else HALF


def exhausted(**given: Any) -> object:
    given = {"epsilon": 1.0, "delta": 1e-5, **given}
    return exhaustion(partial(), noise_stddev=20.0, **given)


@cache
def a_model() -> PrivateClassifier:
    table = features()
    model = classifier(steps=1, batch_size=len(table))
    return model.fit(table, table_of_people()["label"], epsilon=1.0, people=np.arange(len(table)))


def reported(y: Any, *, save: bool = False, **given: Any) -> object:
    held_out = features().iloc[:N].set_axis(BY_NAME)
    given = {"people": np.array(NAMES), **given}
    if save:
        return a_model().save(f"{folder()}/model {next(COUNTER)}", held_out, y, **given)
    return a_model().report(held_out, y, **given)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimators stop behind their checks, and their papers too."""

    def stop(*_: object, **__: object) -> None:
        raise ReachedError

    a_model()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of few records
        a_classifier()
        a_regressor()
    for after in (
        "adapters.estimators.list_doubts",
        "recipes.Recipe.plan",
        "adapters.papers.accuracies_of",
    ):
        monkeypatch.setattr(f"apiece.{after}", stop)


def passes(entry: Entry, value: object) -> bool:
    """Whether the call takes this value; another error than a refusal is raised."""
    try:
        entry.call(value)
    except ReachedError:
        return True
    except DataError as error:
        if "index" in str(error):
            return False
        raise
    return True


def breaches(entry: Entry) -> list[str]:
    """Return what the entry does wrong with each kind of value."""
    own = pd.Series(list(entry.values), index=entry.labels)
    others = own.set_axis([f"stranger {i}" for i in range(N)])
    twice = own.set_axis([f"p{i // 2}" for i in range(N)])
    array = np.asarray(entry.values) if not isinstance(entry.values[0], list) else own.to_numpy()
    good = {"equal": own, "array": array, "joined": own.iloc[SHUFFLED].loc[entry.labels]}
    if entry.listed:
        good["list"] = list(entry.values)
    bad = {"shuffled": own.iloc[SHUFFLED], "foreign": others, "repeated": twice}
    found = [f"{kind} is refused" for kind, value in good.items() if not passes(entry, value)]
    return found + [f"{kind} is taken" for kind, value in bad.items() if passes(entry, value)]


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("entry", TABLE, ids=lambda e: e.name)
def test_equal_or_refused(entry: Entry) -> None:
    assert breaches(entry) == []


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("entry", WIDE, ids=lambda e: e.name)
def test_columns_are_joined_too(entry: Entry) -> None:
    own = pd.DataFrame(entry.values, columns=entry.labels)
    assert passes(entry, own)
    assert passes(entry, entry.values)
    assert not passes(entry, own.iloc[:, SHUFFLED])
    assert not passes(entry, own.set_axis([f"s{i}" for i in range(N)], axis="columns"))


CHECKS = ("require_ids", "require_rows", "common_index", "require_joined", "require_same_index")


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("entry", [*TABLE], ids=lambda e: e.name)
def test_an_entry_without_its_check_is_caught(
    entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("apiece.") and name != "apiece._identity":
            for check in CHECKS:
                if hasattr(module, check):
                    monkeypatch.setattr(module, check, lambda *_, **__: None)
    assert "shuffled is taken" in breaches(entry)


# Names of parameters with an entry a record or a person.
PERSONAL = {
    "people", "included", "epsilon", "delta", "excess", "labels", "slack", "norms", "clip_norm",
    "clip_norms", "limit", "owners", "groups", "member", "target", "levels", "withdrawn", "scores",
    "confidences", "y", "loss", "order", "ids",
}  # fmt: skip
# Kinds of parameters that have one value for all, or no index.
NUMBERS = {
    "float", "int", "str", "float | None", "int | None", "str | None", "float | str | None",
    "str | float", "str | float | None", "float | str", "torch.Tensor", "Tensor",
}  # fmt: skip
ALONE = "nothing else in the call has an entry a record"
IDS = "says whose the values are: others are joined to it"
A_GROUP = "has an entry a group or a level, which are public"
RESULT = "made by apiece alone, from values that were joined"
NO_ROWS = "no entry a record"
EXEMPT = {
    "PrivacyCurve.epsilon delta": ALONE,
    "PrivacyCurve.delta epsilon": ALONE,
    "PrivateImageClassifier.fit y": "images have no index, and y says whose they are",
    "PrivateRegressor target": NO_ROWS,
    "Papers target": NO_ROWS,
    "Papers levels": NO_ROWS,
    "describe_language_model levels": NO_ROWS,
    "Said levels": NO_ROWS,
    "plan_federation epsilon": A_GROUP,
    "charge ids": IDS,
    "require_same_index y": "the check itself",
    "require_joined y": "the check itself",
    "encode_labels y": "behind the fit and the papers of estimators",
    "read_budgets epsilon": "behind the fit of estimators",
    "read_budgets delta": "behind the fit of estimators",
    "read_budgets people": "behind the fit of estimators",
    "read_budgets levels": NO_ROWS,
    "read_people people": "behind the fit and the papers of estimators",
    "FederatedClient levels": "flower's test has it",
    "FederatedClient included": "flower's test has it",
    "PrivateTrainer people": "given on to Trainer, as Hugging Face's test has it",
    "assign_levels levels": A_GROUP,
    "loss_scores confidences": ALONE,
    "ShadowScores ids": IDS,
    "ShadowScores.select ids": IDS,
    "Pool ids": IDS,
    "Pool people": "Units",
    "ConsentMapping levels": NO_ROWS,
    "BudgetGroups epsilon": A_GROUP,
    "BudgetGroups delta": A_GROUP,
    "BudgetGroups excess": A_GROUP,
    "BudgetLevels groups": A_GROUP,
    "BudgetLevels.from_parquet levels": NO_ROWS,
    "Budgets ids": "its row is that of a column",
    "Budgets levels": NO_ROWS,
    "Budgets.from_groups groups": A_GROUP,
    "Budgets.from_frame levels": NO_ROWS,
    "release_histogram levels": A_GROUP,
    "release_rows_per_person levels": A_GROUP,
    "Ownership ids": RESULT,
    "Units ids": IDS,
    "Units.of people": ALONE,
    "Units.of ids": IDS,
    "Units.in_turn people": ALONE,
    "budget_manipulation target": "an id",
    "collusion target": "an id",
    "Costs loss": RESULT,
    "Costs slack": RESULT,
    "Costs.epsilon delta": "costs have no index",
    "Costs.shares delta": "costs have no index",
    "Costs.chosen slack": RESULT,
    "costs_of delta": A_GROUP,
    "Run levels": NO_ROWS,
    "Ledger.make ids": IDS,
    "Ledger.make levels": NO_ROWS,
    "Ledger.enroll ids": IDS,
    "Ledger.enroll levels": NO_ROWS,
    "Ledger.reserve ids": IDS,
    "Ledger.reserve_costs ids": IDS,
    "Ledger.withdraw ids": IDS,
    "LedgerFilter ids": IDS,
    "LedgerReader.admitted withdrawn": NO_ROWS,
    "LedgerReader.withdrawn ids": IDS,
    "LedgerReader.spent ids": IDS,
    "LedgerReader.remaining ids": IDS,
    "LedgerReader.remaining_slack ids": IDS,
    "LedgerReader.balances ids": IDS,
    "LedgerReader.enrolled ids": IDS,
    "reserve_alike ids": IDS,
    "account_shares epsilon": ALONE,
    "Upsample.seats groups": A_GROUP,
    "Answer groups": NO_ROWS,
    "Effect labels": "values of a declared column",
    "Surface labels": "values of two declared columns",
    "Charges epsilon": RESULT,
    "Charges delta": RESULT,
    "Charges limit": RESULT,
    "Trainer order": "batches, which name records by their position in the plan",
    "UnsampledFederation clip_norms": A_GROUP,
    "plan_unsampled_federation epsilon": A_GROUP,
    "report levels": NO_ROWS,
    "PartialSensitivity norms": RESULT,
    "TrainingCharge included": RESULT,
    "TrainingCharge ids": RESULT,
}


def exported(package: Path) -> set[str]:
    for node in ast.parse((package / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            assert isinstance(node.value, ast.List)
            return {e.value for e in node.value.elts if isinstance(e, ast.Constant)}  # type: ignore[misc]
    return set()


@cache
def known_parameters() -> frozenset[str]:
    return frozenset(parameters(SOURCE))


def parameters(source: Path) -> Iterator[str]:
    """Yield "callable parameter" of public names, by their source: adapters need not be there."""
    for path in sorted(source.rglob("*.py")):
        package = source / path.relative_to(source).parts[0]
        if not package.is_dir() or package.name == "cli":
            continue
        public = exported(package)
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            whole = package.name == "adapters" and (node.name[0] != "_" or node.name == "_Tabular")
            if whole or node.name in public or node.name == "LedgerReader":
                yield from of_node(node)


def of_node(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    functions = [("", node)] if isinstance(node, ast.FunctionDef) else []
    if isinstance(node, ast.ClassDef):
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                kind = ast.unparse(part.annotation)
                if part.target.id in PERSONAL and kind not in NUMBERS:
                    yield f"{node.name} {part.target.id}"
            elif isinstance(part, ast.FunctionDef) and (
                part.name[0] != "_" or part.name == "__init__"
            ):
                functions.append(("" if part.name == "__init__" else f".{part.name}", part))
    for name, function in functions:
        given = function.args
        for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
            kind = "" if one.annotation is None else ast.unparse(one.annotation)
            if one.arg in PERSONAL and kind not in NUMBERS:
                yield f"{node.name}{name} {one.arg}"


def test_every_public_parameter_stands_in_the_table() -> None:
    known = {entry.name.partition(",")[0] for entry in [*TABLE, *WIDE]} | set(EXEMPT)
    missing = sorted(known_parameters() - known)
    assert not missing, f"give each a row of the table, or a reason: {missing}"


def test_no_reason_is_left_of_what_is_gone() -> None:
    gone = sorted(set(EXEMPT) - known_parameters())
    assert not gone, gone


def test_a_new_door_is_noticed(tmp_path: Path) -> None:
    package = tmp_path / "asking"
    package.mkdir()
    (package / "__init__.py").write_text('__all__ = ["ask"]\n')
    (package / "ask.py").write_text("def ask(table, people: object, noise: float): ...\n")
    assert list(parameters(tmp_path)) == ["ask people"]


def test_the_remedy_keeps_each_promise() -> None:
    """Half of 400 people asked .5 and half 8; by position 102 of the first were trained at 8."""
    table = features().set_axis([f"p{i}" for i in range(400)])
    label = table_of_people()["label"].set_axis(table.index)
    consent = pd.Series(np.where(np.arange(400) % 2, 8.0, 0.5), index=table.index)
    shuffled = consent.sample(frac=1.0, random_state=0)
    assert 80 < int(((shuffled.to_numpy() == 8) & (consent == 0.5)).sum()) < 120
    model = classifier(steps=2, batch_size=40)
    with pytest.raises(DataError, match=r"give epsilon\.loc\[X\.index\]"):
        model.fit(table, label, epsilon=shuffled)
    joined = shuffled.loc[table.index]
    assert (joined == consent).all()
    model.fit(table, label, epsilon=joined)
    assert [(group.epsilon, group.records) for group in model.promises_] == [(0.5, 200), (8.0, 200)]


def test_a_fold_of_a_cross_validation_keeps_its_consents() -> None:
    sklearn = pytest.importorskip("sklearn")
    from sklearn.model_selection import KFold, cross_val_score

    table = features().set_axis([f"p{i}" for i in range(400)])
    label = table_of_people()["label"].set_axis(table.index)
    consent = pd.Series(1.0, index=table.index)
    model = classifier(steps=2, batch_size=40)
    with sklearn.config_context(enable_metadata_routing=True):
        scores = cross_val_score(model, table, label, cv=KFold(2), params={"epsilon": consent})
    assert scores.size == 2


def test_labels_that_only_number_rows_are_positions() -> None:
    numbered = pd.Series(LEVELS)
    assert Budgets(numbered, 1e-5).ids.tolist() == list(range(N))
    assert Budgets(numbered, 1e-5, ids=NAMES).ids.tolist() == NAMES
    with pytest.raises(DataError, match="another order"):  # these are the same numbers
        Budgets(numbered, 1e-5, ids=SHUFFLED)


def test_a_series_gives_budgets_their_ids() -> None:
    asked = Budgets(named(LEVELS).iloc[SHUFFLED], 1e-5)
    assert asked.ids.tolist() == BY_NAME[SHUFFLED].tolist()
    assert asked.epsilon.tolist() == LEVELS[SHUFFLED].tolist()


@pytest.mark.parametrize(
    "labels",
    [
        pd.Index([f"p{i // 2}" for i in range(N)]),
        pd.date_range("2020-01-01", periods=N),
        pd.MultiIndex.from_product([["a", "b"], range(N // 2)]),
        pd.Index(np.arange(N) + 0.5),
    ],
    ids=["repeated", "dates", "two levels", "fractions"],
)
def test_labels_that_are_no_ids_are_refused(labels: pd.Index) -> None:
    with pytest.raises(DataError, match=r"ids=, or epsilon\.to_numpy\(\)"):
        Budgets(pd.Series(LEVELS, index=labels), 1e-5)


@pytest.mark.usefixtures("no_training")
def test_a_row_label_that_repeats_on_both_sides_is_taken_where_it_is_equal() -> None:
    visits = pd.Index([f"p{i // 2}" for i in range(N)])
    with pytest.raises(ReachedError):
        fitted(X=frame(visits), epsilon=pd.Series(ONES, index=visits), people=visits)
    with pytest.raises(DataError, match="more than once"):
        fitted(X=frame(visits), epsilon=pd.Series(ONES, index=visits[SHUFFLED]))


@pytest.mark.usefixtures("no_training")
def test_columns_of_arrow_and_polars_are_positions() -> None:
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(ReachedError):
        fitted(epsilon=pa.array(ONES))
    table = pa.Table.from_pandas(frame())  # which keeps the index of pandas
    with pytest.raises(ReachedError):
        fitted(X=table, epsilon=named(ONES))
    with pytest.raises(DataError, match="another order"):
        fitted(X=table, epsilon=named(ONES).iloc[SHUFFLED])
    pl = pytest.importorskip("polars")
    with pytest.raises(ReachedError):
        fitted(X=pl.DataFrame({"a": np.linspace(0, 1, N)}), epsilon=pl.Series(ONES))


@pytest.mark.usefixtures("no_training")
def test_a_message_shows_no_id() -> None:
    for change in (SHUFFLED, slice(None)):
        value = named(ONES).iloc[change]
        value = value if change is SHUFFLED else value.set_axis([f"x{i}" for i in range(N)])
        with pytest.raises(DataError) as caught:
            fitted(epsilon=value)
        assert not any(name in str(caught.value) for name in [*NAMES, "x0", "x1"])
