"""Papers of estimators: a report, a statement, and a folder that is checked when it is read."""

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import apiece
from apiece.errors import DataError, InputError, StateError
from apiece.jobs import Run, load_model, statement_schema
from apiece.recipes import Recipe
from apiece.reporting.papers import complete_papers
from apiece.sklearn import (
    Account,
    Numeric,
    PrivateClassifier,
    PrivateImageClassifier,
    PrivateRegressor,
    Skip,
)
from sample_estimators import COLUMNS, ROWS, classifier, features, people, regressor

LABELS = people()["label"]
EPSILON = np.where(np.arange(ROWS) % 2, 1.0, 3.0)
LEVELS = {"low": 1.0, "high": 3.0}
SAID: dict[str, Any] = {
    "purpose": "to see", "controller": "County Hospital", "contact": "dpo@example.org",
    "valid_until": "2030-12-31", "levels": LEVELS,
}  # fmt: skip


@pytest.fixture(scope="module")
def fitted() -> PrivateClassifier:
    return classifier(random_state=None).fit(features(), LABELS, epsilon=EPSILON)


@pytest.fixture(scope="module")
def saved(fitted: PrivateClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted.save(tmp_path_factory.mktemp("saved") / "kept", features(), LABELS, **SAID)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "kept"))


def test_a_report_has_accuracy_and_checklist(fitted: PrivateClassifier) -> None:
    page = fitted.report(features(), LABELS, **SAID).html
    right = 100 * fitted.score(features(), LABELS)
    assert f"{right:.2f} %" in page
    assert "Fit for release once you have decided" in page
    assert "County Hospital" in page
    assert "not tested" not in fitted.report().html
    assert apiece.report(fitted).html == fitted.report().html


def test_a_public_edition_names_declared_budgets_alone(fitted: PrivateClassifier) -> None:
    page = fitted.report(features(), LABELS, edition="public", **SAID).html
    assert "low" in page
    assert f"{100 * fitted.score(features(), LABELS):.2f} %" not in page
    assert f"{ROWS // 2}</td>" not in page
    assert "so none is named here" in fitted.report(edition="public").html


def test_a_statement_is_as_the_schema_says(fitted: PrivateClassifier) -> None:
    said = fitted.statement(**SAID)
    jsonschema.validate(said, statement_schema())
    assert said["for_release"] is True
    assert [each["name"] for each in said["guarantee"]["levels"]] == ["low", "high"]
    assert (said["controller"], said["valid_until"]) == ("County Hospital", "2030-12-31")
    assert classifier(epsilon=1.0).fit(features(), LABELS).statement()["for_release"] is False


def test_what_is_kept_comes_back(fitted: PrivateClassifier, folder: Path) -> None:
    again = PrivateClassifier.load(folder)
    assert (again.predict(features()) == fitted.predict(features())).all()
    assert again.statement() == json.loads((folder / "statement.json").read_text())
    assert again.report().html == (folder / "report.html").read_text()
    assert Run.load(folder).controller == "County Hospital"
    assert load_model(folder / "model.pt").statement == again.statement()


def test_of_persons_with_columns_left_out(tmp_path: Path) -> None:
    """Labels that are numbers, a column that is skipped, several rows a person."""
    frame = features().assign(id=1)
    who, y = np.arange(ROWS) // 2, (LABELS == "old").to_numpy().astype(int)
    model = classifier(account=Account()).set_params(columns=COLUMNS | {"id": Skip()})
    model.set_params(classes=[0, 1], hidden=(4,), rows_per_person=1)
    model.fit(frame, y, epsilon=2.0, people=who).fit(frame, y, epsilon=2.0, people=who)
    with pytest.raises(InputError, match="people: the estimator was fitted by person"):
        model.report(frame, y)
    assert model.statement()["mechanism"]["models_trained"] == 2  # as the account has noted
    again = PrivateClassifier.load(model.save(tmp_path / "kept", frame, y, people=who))
    assert again.predict(frame).tolist() == model.predict(frame).tolist()
    assert again.run_.kept.test_accuracy_by_person


def test_of_a_number_and_of_images(tmp_path: Path) -> None:
    pay, recipe = people()["pay"], Recipe(transform="leaf-patches", groups=32, epochs=1.0)
    model = regressor().set_params(target=Numeric(1, 300, scale="log"))
    model.fit(features(), pay, epsilon=2.0)
    again = PrivateRegressor.load(model.save(tmp_path / "number", features(), pay))
    assert (again.predict(features()) == model.predict(features())).all()
    assert "mean absolute error" in again.report().html
    images = np.zeros((100, 1, 8, 8), np.uint8)
    images[50:] = 200
    truth = np.repeat(["dark", "light"], 50)
    seen = PrivateImageClassifier(["dark", "light"], recipe, epsilon=2.0, delta=1e-4)
    seen.fit(images, truth)
    kept = seen.save(tmp_path / "images", images, truth)
    back = PrivateImageClassifier.load(kept)
    assert (back.predict(images) == seen.predict(images)).all()
    with pytest.raises(InputError, match="is of PrivateImageClassifier"):
        PrivateClassifier.load(kept)
    _change_weight(kept)
    with pytest.raises(DataError, match="weights is not what its statement is bound to"):
        PrivateImageClassifier.load(kept)


def test_of_votes_and_of_numpy_s_numbers(tmp_path: Path) -> None:
    model = classifier(steps=np.int64(5), batch_size=np.int64(8), learning_rate=np.float32(0.5))
    model.set_params(method="pate", public=features(), teachers=np.int64(4), questions=20)
    model.set_params(threshold=0.6, hidden=np.array([3])).fit(features(), LABELS, epsilon=2.0)
    again = PrivateClassifier.load(model.save(tmp_path / "kept", features(), LABELS))
    assert (again.predict(features()) == model.predict(features())).all()
    assert again.statement()["mechanism"]["name"].startswith("PATE")
    assert again.threshold == 0.6


def _change_weight(folder: Path) -> None:
    content = torch.load(folder / "model.pt", weights_only=True)
    first = next(iter(content["state"].values())).view(-1)
    first[0] = torch.nextafter(first[0], torch.tensor(torch.inf))
    torch.save(content, folder / "model.pt")


def _put(folder: Path, name: str, *path: str, value: Any) -> None:
    stored = at = json.loads((folder / name).read_text())
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (folder / name).write_text(json.dumps(stored))


CHANGES: dict[str, Any] = {
    "a weight": _change_weight,
    "the noise of the plan": lambda f: _put(f, "plan.json", "clip_norm", value=2.0),
    "an epsilon": lambda f: _put(f, "statement.json", "guarantee", "levels", value=[]),
    "the ledger's head": lambda f: _put(f, "statement.json", "bound_to", "ledger", value="1:00"),
    "the controller": lambda f: _put(f, "metrics.json", "controller", value="Somebody"),
    "the accuracy": lambda f: _put(f, "metrics.json", "tested", value=None),
    "the columns": lambda f: _put(f, "metrics.json", "estimator", "columns", value={}),
    "the classes": lambda f: _put(f, "metrics.json", "estimator", "labels", value=["b", "a"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(change: Any, folder: Path) -> None:
    change(folder)
    with pytest.raises(DataError) as caught:
        PrivateClassifier.load(folder)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_said(fitted: PrivateClassifier, folder: Path) -> None:
    for said, wrong in (
        ({"valid_until": "2030"}, "must be a day"),
        ({"levels": {"low": 1.0}}, "3, 0.0001 of a group is none of them"),
        ({"purpose": 3}, "purpose = 3"),
    ):
        with pytest.raises(InputError, match=wrong):
            fitted.statement(**said)
    with pytest.raises(DataError, match="exists and is not empty"):
        fitted.save(folder)
    with pytest.raises(NotFittedError):
        apiece.report(classifier())


def test_weights_that_were_changed_after_the_fit_have_no_papers() -> None:
    model = classifier(epsilon=1.0).fit(features(), LABELS)
    with torch.no_grad():
        model.network_[0].bias += 1
    for papers in (model.statement, model.report, lambda: apiece.report(model)):
        with pytest.raises(StateError, match="changed after fit"):
            papers()


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"contrller": "x"}, "'contrller'; did you mean 'controller'"),
        ({"level": LEVELS}, "'level'; did you mean 'levels'"),
        ({"levels": [1, 4]}, "epsilon, delta = 3, .* of a group is none of them"),
        ({"levels": [(1,)]}, "give names, as {'low': 1, 'high': 8}, or pairs"),
        ({"levels": 3}, "levels = 3: must be a list"),
        ({"valid_until": "2020-01-01"}, "is past; give a day from 20"),
        ({"contact": 3}, "contact = 3: must be a text"),
    ],
)
def test_what_the_steward_says_is_checked(
    said: Any, says: str, fitted: PrivateClassifier, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        fitted.save(tmp_path / "kept", **said)
    assert not (tmp_path / "kept").exists()


def test_levels_that_are_said_later_name_the_groups(
    fitted: PrivateClassifier, folder: Path
) -> None:
    """In plan, report and statement; and numbers are their own names."""
    assert "epsilon=1" not in (folder / "report.html").read_text()
    assert [group.name for group in Run.load(folder).kept.plan.groups] == ["low", "high"]
    assert fitted.plan_.groups[0].name == "epsilon=1"
    assert fitted.statement(levels=[1, 3])["guarantee"]["levels"][1]["name"] == "ε = 3"


def test_papers_of_a_saved_estimator_are_completed(folder: Path) -> None:
    before = (folder / "plan.json").read_bytes()
    assert complete_papers(folder, contact="new@example.org").contact == "new@example.org"
    assert PrivateClassifier.load(folder).statement()["contact"] == "new@example.org"
    assert (folder / "plan.json").read_bytes() == before
