"""A public page or statement tells nothing of anyone: tables that differ in a person give the same.

Real jobs are run on a table and on its neighbours. Then what is private is put out of reach: a
public edition is made of a subject whose plans, run and findings raise when they are touched.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece import Budgets, Scale, assign, release_histogram, report
from apiece.assignment import Correlated
from apiece.audit import Findings, lower_bound, one_run, roc_by_group
from apiece.datasets import load
from apiece.errors import InputError
from apiece.jobs import Run, prepare
from apiece.jobs import run as run_job
from apiece.jobs.config import job_from_dict
from apiece.jobs.results import statement_of
from apiece.jobs.trained import Level
from apiece.plan import Plan
from apiece.reporting import sections as sections_module
from apiece.reporting.pages import render
from apiece.reporting.papers import card, registry
from apiece.reporting.sections import Declared, Subject, subject_of
from sample_runs import sample_run

SCHEMA = """
[columns.x]
kind = "numeric"
lower = 0
upper = 1
[columns.town]
kind = "categorical"
values = ["A", "B"]
[columns.y]
kind = "categorical"
values = ["a", "b"]
[columns.amount]
kind = "numeric"
lower = 0
upper = 9
"""
LABELS = {"classes": "y", "a number": "amount"}


def people() -> pd.DataFrame:
    """60 persons, a row each: the group of ε = 4 has ten that are trained on."""
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "x": random.random(60).round(3).astype(str), "town": random.choice(["A", "B"], 60),
            "y": random.choice(["a", "b"], 60), "amount": random.integers(0, 9, 60).astype(str),
            "e": np.where(np.arange(60) % 4, 1.0, 4.0), "who": [f"p{i}" for i in range(60)],
            "part": np.where(np.arange(60) < 40, "train", "test"),
        }
    )  # fmt: skip


def put(row: int, **values: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        for name, value in values.items():
            frame.loc[row, name] = value
        return frame

    return change


# One person's rows or budget are others, or are not there at all.
NEIGHBOURS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "another budget, of a group that then is small": put(0, e=1.0),
    "a budget that nobody else has": put(1, e=2.0),
    "one person less": lambda frame: frame.drop(index=4),
    "a held-out person less": lambda frame: frame.drop(index=45),
    "another label": put(3, y="b", amount="7"),
    "another feature": put(5, x="0.99", town="B"),
    "held out in place of trained on": put(7, part="test"),
    "a value out of range": put(8, x="7"),
    "a category that is not declared": put(9, town="Z"),
    "a row that cannot be read": put(10, x="unknown"),
}
SOME = ["a budget that nobody else has", "one person less"]
OPTIONS: dict[str, dict[str, Any]] = {
    "levels declared": {"levels": [1.0, 2.0, 4.0]},
    "levels not declared": {},
    "persons": {"person": "who", "rows_per_person": 1, "levels": [1.0, 2.0, 4.0]},
    "a comparison": {"strategies": ["uniform", "scale"], "levels": [1.0, 2.0, 4.0]},
}


def trained(folder: Path, frame: pd.DataFrame, label: str = "y", **options: Any) -> Run:
    folder.mkdir()
    skipped = "\n".join(f'[columns.{c}]\nkind = "skip"' for c in ("part", "who", "e"))
    (folder / "s.toml").write_text(SCHEMA + skipped)
    frame.to_csv(folder / "t.csv", index=False)
    changes = {
        "source": str(folder / "t.csv"), "schema": str(folder / "s.toml"), "label": label,
        "epsilon": "e", "delta": 1e-3, "steps": 3, "batch_size": 10, "split": "part",
        "strategy": "scale", "purpose": "to see", "ids": "who", **options,
    }  # fmt: skip
    if "person" in options:
        del changes["ids"]
    job = job_from_dict({}, name="x", changes=changes)
    out = folder / "run"
    found = run_job(prepare(job, out=out), out=out)
    return replace(found, finished="2026-01-31")  # the two may lie on both sides of midnight


def public(value: Any) -> str:
    """Return all that may be told of a value: its public page, and of a run the statement.

    What that is bound to are digests of the released weights, and under a fresh salt.
    """
    page = report(value, edition="public").html
    if not isinstance(value, Run):
        return page
    return page + json.dumps(statement_of(replace(value, bound=None)))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """The runs on the table itself, made when they are first asked for."""
    folder, made = tmp_path_factory.mktemp("base"), {}

    class Made(dict[tuple[str, str], Run]):
        def __missing__(self, key: tuple[str, str]) -> Run:
            name, options = key
            place = folder / f"{len(made)}"
            made[key] = trained(place, people(), LABELS[name], **OPTIONS[options])
            return made[key]

    class Kept(Made):
        def __getitem__(self, key: tuple[str, str]) -> Run:
            return made[key] if key in made else self.__missing__(key)

    return Kept()


@pytest.mark.parametrize(
    ("change", "options"),
    [*((c, "levels declared") for c in SOME), (SOME[0], "levels not declared")],
)
def test_a_neighbouring_table_gives_the_same_bytes(
    change: str, options: str, base: dict[tuple[str, str], Run], tmp_path: Path
) -> None:
    first = base["classes", options]
    second = trained(tmp_path / "b", NEIGHBOURS[change](people()), **OPTIONS[options])
    assert first.to_dict() != second.to_dict()
    assert public(first) == public(second)


# Private budgets: of which kinds there are any, and how many people chose each.
ASKED = [
    Budgets([1.0] * 50 + [4.0] * 50, 1e-3),
    Budgets([1.0] * 99 + [4.0], 1e-3),
    Budgets([2.75] * 100, 1e-3),
    Budgets(np.resize([0.625, 1.375, 7.5], 100), np.resize([1e-3, 1e-4], 100)),
    Budgets([1.0] * 50 + [4.0] * 50, 1e-3, excess=np.resize([0.5, 0.625], 100)),
]


@pytest.mark.parametrize(
    ("other", "data"),
    [
        pytest.param(other, dict.fromkeys(names, True), marks=marks, id=f"{asked}-{names}")
        for asked, other in zip(["one", "alike", "three", "bounds"], ASKED[1:], strict=True)
        for names in ((), ("packaged",), ("simulated_budgets",))
        for marks in [[pytest.mark.slow] if names and asked in ("one", "alike") else []]
    ],
)
def test_private_budgets_are_on_no_public_page(other: Budgets, data: dict[str, bool]) -> None:
    """Of a plan, of a run and in its statement: without declared levels nothing follows from them.

    Data that are packaged have private budgets all the same, unless these were drawn; and budgets
    that were drawn for a private table follow its size.
    """
    pages = []
    assert not ASKED[0].groups.same_as(other.groups)
    for budgets in (ASKED[0], other):
        made = assign(budgets, Scale(), steps=3, expected_batch_size=10, clip_norm=1.0)
        run = sample_run()
        strategies = tuple(replace(each, plan=made.public()) for each in run.strategies)
        run = replace(run, strategies=strategies, data=replace(run.data, **data))
        pages.append((public(made), public(made.public()), public(run)))
    assert pages[0] == pages[1]
    assert all("so none is named here" in page for page in pages[0])
    assert not any(text in page for page in pages[1] for text in ("2.75", "0.625", "1.375", "7.5<"))


def with_own_budgets(folder: Path, epsilon: list[float]) -> Run:
    """A run on a packaged table, of which these persons, one a row, chose their budgets."""
    folder.mkdir()
    ids = load("credit_default")["ID"]
    wishes = pd.DataFrame({"ID": ids, "wish": np.resize(epsilon, len(ids))})
    wishes.to_csv(folder / "wishes.csv", index=False)
    changes = {
        "source": "credit_default", "person": "ID", "people": str(folder / "wishes.csv"),
        "rows_per_person": 1, "epsilon": "wish", "delta": 1e-6, "levels": [1.0, 4.0],
        "steps": 2, "batch_size": 20, "strategy": "scale",
    }  # fmt: skip
    out = folder / "run"
    found = run_job(
        prepare(job_from_dict({}, name="x", changes=changes), out=out), out=out,
    )  # fmt: skip
    return replace(found, finished="2026-01-31")


def test_budgets_that_people_chose_beside_a_packaged_table_are_on_no_public_page(
    tmp_path: Path,
) -> None:
    """The table is public, and who chose what in it is not: nor is what follows from it."""
    first = with_own_budgets(tmp_path / "a", [1.0, 4.0])
    second = with_own_budgets(tmp_path / "b", [1.0, 1.0, 1.0, 4.0])
    assert first.data.packaged
    assert first.kept.plan.noise_stddev != second.kept.plan.noise_stddev
    assert public(first) == public(second)
    statements = [statement_of(replace(run, bound=None)) for run in (first, second)]
    for paper in (card, registry):
        assert paper(statements[0]) == paper(statements[1])
    assert report(first).html != report(second).html


def plan_told(value: Any) -> tuple[Level, ...]:
    groups = (value.kept.plan if isinstance(value, Run) else value).groups
    return tuple(Level(group.name, group.epsilon, group.delta) for group in groups)


@pytest.mark.parametrize(
    ("name", "leak"), [("_of_run", "levels"), ("_of_plan", "levels"), ("_of_run", "open")]
)
def test_planted_private_budgets_on_a_public_page(
    name: str, leak: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a page that names the groups' budgets as levels, or opens what follows."""
    own = getattr(sections_module, name)

    def leaky(value: Any, *levels: Any) -> Subject:
        found = own(value, *levels)
        if leak == "open":
            return replace(found, open=frozenset({"budgets"}))
        return replace(found, declared=replace(found.declared, levels=plan_told(value)))

    monkeypatch.setattr(sections_module, name, leaky)
    with pytest.raises(AssertionError):
        test_private_budgets_are_on_no_public_page(ASKED[2], {})


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("change", NEIGHBOURS)
def test_whatever_the_job(
    change: str, label: str, options: str, base: dict[tuple[str, str], Run], tmp_path: Path
) -> None:
    frame = NEIGHBOURS[change](people())
    second = trained(tmp_path / "b", frame, LABELS[label], **OPTIONS[options])
    assert public(base[label, options]) == public(second)


@pytest.mark.parametrize("change", SOME[1:])
def test_a_planted_leak_is_seen(
    change: str, base: dict[tuple[str, str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: what is declared is mixed with what follows from people."""
    first = base["classes", "levels declared"]
    second = trained(tmp_path / "b", NEIGHBOURS[change](people()), **OPTIONS["levels declared"])
    own = sections_module._of_run
    leaks: list[Callable[[Run], dict[str, Any]]] = [
        lambda run: {"purpose": f"{[promise.records for promise in run.kept.promises]}"},
        lambda run: {"hidden": (run.data.training_records + len(run.kept.promises),)},
        lambda run: {"settings": {"scale": {"noise": run.kept.plan.noise_stddev}}},
    ]
    for leak in leaks:

        def leaky(run: Run, leak: Any = leak) -> Subject:
            found = own(run)
            return replace(found, declared=replace(found.declared, **leak(run)))

        monkeypatch.setattr(sections_module, "_of_run", leaky)
        assert public(first) != public(second)


class Poison:
    """What is private: it cannot be touched in any way."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"a public edition reads {name} of what is private")

    def __iter__(self) -> Any:
        raise AssertionError("a public edition goes through what is private")

    __len__ = __bool__ = __iter__


def plan() -> Plan:
    return assign(
        Budgets([1.0] * 50 + [4.0] * 50, 1e-3), Scale(), steps=3, expected_batch_size=10,
        clip_norm=1.0,
    )  # fmt: skip


def findings(seed: int) -> Findings:
    random = np.random.default_rng(seed)
    scores, truth = random.normal(size=200), random.random(200) < 0.5
    groups = np.resize(["a", "b"], 200)
    return Findings(
        audit="one run", attack="loss", canaries=200,
        bounds=(one_run(scores, truth, delta=1e-5), lower_bound(scores, -scores, delta=1e-5)),
        rocs=roc_by_group(scores, truth, groups),
    )  # fmt: skip


@pytest.mark.parametrize(
    "value", [sample_run(), plan(), findings(0)], ids=lambda v: type(v).__name__
)
def test_a_public_edition_touches_nothing_private(value: Any) -> None:
    whole = subject_of(value, [])
    out_of_reach: Any = Poison()
    closed = Subject(whole.declared, out_of_reach, out_of_reach, out_of_reach)
    assert render(closed, "public") == render(whole, "public")
    with pytest.raises(AssertionError, match="what is private"):
        render(closed, "internal")


@pytest.mark.parametrize("name", ["spent", "meaning", "accuracy", "table"])
def test_a_section_that_is_wrongly_called_declared_gets_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the mistake is an error, and not a leak."""
    mistaken = tuple(
        replace(s, reads="declared") if s.name == name else s for s in sections_module.SECTIONS
    )
    monkeypatch.setattr(sections_module, "SECTIONS", mistaken)
    with pytest.raises(AttributeError):
        public(sample_run())


def test_what_is_declared_is_these_fields() -> None:
    """A field that comes is a decision: say here that it cannot depend on anybody."""
    assert set(Declared.__dataclass_fields__) == {
        "of", "version", "purpose", "finished", "label", "classes", "target_range", "schema",
        "columns", "unit", "relation", "strategy", "settings", "models", "hidden",
        "rows_per_person", "seeded", "no_limit_cap", "levels", "charged", "simulated", "packaged",
        "audit", "attack", "bounds", "method", "controller", "contact", "valid_until",
        "fixed_steps",  # of correlated noise, which is chosen
        "turns",  # likewise
        "runs",  # of a search: the mean of its law, and not how many there were
    }  # fmt: skip


@pytest.mark.parametrize("counts", [(50, 50), (51, 49), (100, 1), (3, 1)])
def test_plans_of_other_counts(counts: tuple[int, int]) -> None:
    levels = [(1.0, 1e-3), (4.0, 1e-3)]
    budgets = Budgets([1.0] * counts[0] + [4.0] * counts[1], 1e-3)
    other = assign(budgets, Scale(), steps=3, expected_batch_size=2, clip_norm=1.0)
    page = report(plan(), edition="public", levels=levels).html
    assert report(other, edition="public", levels=levels).html == page
    assert "What was promised, and what was spent" in page.split('id="left-out"')[1]


@pytest.mark.parametrize("counts", [(51, 49), (90, 10)])
def test_plans_without_sampling_of_other_counts(counts: tuple[int, int]) -> None:
    settings = {"steps": 40, "expected_batch_size": 10, "clip_norm": 1.0, "noise": Correlated()}
    pages = []
    for strict, weak in ((50, 50), counts):
        budgets = Budgets([1.0] * strict + [4.0] * weak, 1e-3)
        made = assign(budgets, Scale(), **settings)  # type: ignore[arg-type]
        levels = [(1.0, 1e-3), (4.0, 1e-3)]
        pages.append(report(made, edition="public", levels=levels).html)
    assert pages[0] == pages[1]
    assert "fixed beforehand" in pages[0]


def test_a_plan_of_released_counts_is_shown() -> None:
    """All that can differ is then the released histogram: the same one gives the same page."""
    asked = Budgets([1.0] * 500 + [4.0] * 500, 1e-3)
    histogram = release_histogram(asked, [1.0, 4.0], level_delta=1e-3, epsilon=1.0, noise="laplace")
    made = assign(histogram.budgets(), Scale(), steps=3, expected_batch_size=10, clip_norm=1.0)
    pages = []
    for real in (asked, Budgets([1.0] * 501 + [4.0] * 499, 1e-3)):
        bound = made.bind_released(histogram, real)
        pages.append(report(bound, edition="public").html)
    assert pages[0] == pages[1]
    assert f"{int(histogram.counts[0]):,}</td>" in pages[0]
    assert "What this edition leaves out" not in pages[0]


def test_audits_of_other_scores() -> None:
    assert public(findings(0)) == public(findings(1))
    assert report(findings(0)).html != report(findings(1)).html


def test_public_data_are_shown() -> None:
    private = sample_run()
    data = replace(private.data, packaged=True, simulated_budgets=True)
    page = public(replace(private, data=data))
    assert "How good the models are" in page
    assert "80.00" in page
    assert "80.00" not in public(private)


def test_what_must_not_be_released_has_no_public_edition() -> None:
    with pytest.raises(InputError, match="not fit for a release"):
        report(replace(plan(), objections=("broken",)), edition="public")
