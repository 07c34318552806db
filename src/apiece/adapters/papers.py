"""Papers of a fitted estimator: its report, its statement, and its folder with both.

A fit records its run as a `Run`, so that an estimator's papers are made, checked and read back as
those of `apiece train`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, column_or_1d

from apiece._types import Json
from apiece._version import __version__
from apiece.adapters.fitting import (
    encode_labels,
    read_people,
    require_joined,
    require_same_index,
)
from apiece.budgets.levels import Levels, Offered
from apiece.datasets import Categorical, Numeric, Schema
from apiece.datasets.pairs import Pair
from apiece.datasets.schema import Column
from apiece.errors import InputError, StateError
from apiece.jobs.config import read_words
from apiece.jobs.prepared import RunFolder, refuse_used
from apiece.jobs.results import METRICS, MODEL, PLAN, REPORT, STATEMENT, Run, statement_of
from apiece.jobs.statement import Bound, to_text
from apiece.jobs.trained import (
    Asked,
    Facts,
    Predictions,
    Trained,
    accuracies_of,
    errors_of,
    name_groups,
    read_levels,
)
from apiece.training.charging import weights_digest

if TYPE_CHECKING:
    import torch

    from apiece.plan import Plan
    from apiece.reporting import Report


class Said(TypedDict, total=False):
    """The steward's entries in the papers; see `Papers.statement`."""

    purpose: str
    controller: str
    contact: str
    valid_until: str
    levels: Asked


class Papers(BaseEstimator):
    """The report, the statement and the folder of a fitted estimator.

    Attributes:
        run_: The run of the fit, from public numbers and declarations alone.
    """

    plan_: Plan
    network_: torch.nn.Module
    run_: Run
    account: Sequence[Plan] | None = None
    target: object = None
    levels: Offered | None = None
    pairs_: tuple[Pair, ...]

    def report(
        self,
        X: object = None,
        y: object = None,
        *,
        people: npt.ArrayLike | None = None,
        edition: str = "internal",
        **said: Unpack[Said],
    ) -> Report:
        """Return the page of the fitted estimator; `apiece.report(model)` is this without rows.

        Args:
            X: Held-out rows, as for `fit`; without any the page has no accuracy.
            y: Their labels.
            people: The person of each row, where the estimator was fitted to persons.
            edition: "internal" for the steward, "public" for anyone.
            **said: As for `statement`.

        Raises:
            InputError: As `statement` and `predict`, and for a public edition of a plan with
                objections.

        Guarantee:
            As `apiece.report`. Accuracy on held-out rows has no noise, and no ε covers it: it is
            in the internal edition alone.
        """
        from apiece.reporting import report

        return report(self._complete_run(X, y, people, said), edition=edition)

    def described(self) -> Run:
        """Return the run of the fit, as `apiece.report` takes it.

        Raises:
            StateError: Where the network was changed after the fit.
        """
        return self._complete_run(None, None, None, {})

    def statement(self, **said: Unpack[Said]) -> Json:
        """Return the privacy statement of the fitted estimator as JSON types.

        Args:
            **said: purpose, controller (who answers for the data), contact, valid_until (a day, as
                2030-12-31), and levels: the budgets that people could choose from, as {name: ε} at
                the fit's δ, or pairs (ε, δ); the estimator's where none are given. Without any no
                ε is named: those that people chose are data about them.

        Raises:
            InputError: For a day that is none, and levels that the fit's budgets are not among.
            StateError: Where the network was changed after the fit.

        Guarantee:
            As `apiece.jobs.results.statement_of`.
        """
        return statement_of(self._complete_run(None, None, None, said))

    def save(
        self,
        folder: str | Path,
        X: object = None,
        y: object = None,
        *,
        people: npt.ArrayLike | None = None,
        **said: Unpack[Said],
    ) -> Path:
        """Return the folder, new or empty before, with the model and its papers in it.

        model.pt and statement.json may be given away; plan.json, metrics.json and report.html are
        for the steward. `load`, `Run.load` and `apiece report` read the folder. Public rows of PATE
        are not kept.

        Args:
            folder: Path of the folder.
            X: As for `report`.
            y: As for `report`.
            people: As for `report`.
            **said: As for `statement`.

        Raises:
            DataError: For a folder that is used or cannot be written to.
            InputError: As `report`.
        """
        from apiece.jobs.model import HEAD, TABULAR, TabularModel, to_bytes
        from apiece.reporting import report

        run = self._complete_run(X, y, people, said)
        refuse_used(Path(folder))
        # Made first: what cannot be stated is not saved either.
        statement = statement_of(run)
        facts = run.data
        # The classes, or the declared range, that predictions are in.
        target = Categorical(facts.classes) if facts.classes else self.target
        columns: Mapping[str, Column] = {}
        if facts.columns:
            columns = Schema.from_dict({"columns": facts.columns}, "").columns
        model = TabularModel(
            self.network_,  # type: ignore[arg-type]
            dict(columns),  # type: ignore[arg-type]
            facts.label,
            target,  # type: ignore[arg-type]
            statement,
            getattr(self, "pairs_", ()),
        )
        run_folder = RunFolder(Path(folder))
        run_folder.write(PLAN, run.kept.plan.to_json(indent=2) + "\n")
        run_folder.write(MODEL, to_bytes(model, TABULAR if facts.columns else HEAD))
        run_folder.write(STATEMENT, to_text(statement))
        run_folder.write(METRICS, run.to_json(indent=2) + "\n")
        run_folder.write(REPORT, report(run).html)
        return run_folder.path

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the fitted estimator in a folder that `save` wrote.

        Args:
            folder: Path of the folder.

        Raises:
            DataError: As `Run.load`: for weights, a plan, figures or a statement that are not what
                the statement is bound to. Who can write all of them can make others that agree.
            InputError: For the folder of another estimator.
        """
        from apiece.jobs.model import load_model
        from apiece.recipes import Recipe

        run = Run.load(folder)
        if run.estimator is None:
            raise InputError(
                f"{folder}: is of apiece train, and not of {cls.__name__}; read it by "
                "apiece.jobs.load_model"
            )
        stored = run.estimator
        if stored["name"] != cls.__name__:
            raise InputError(
                f"{folder}: is of {stored['name']}, and not of {cls.__name__}; read it by "
                f"{stored['name']}.load"
            )
        # Declarations are public, and are stored with the figures.
        columns = None
        if stored["columns"]:
            columns = Schema.from_dict({"columns": stored["columns"]}, str(folder)).columns
        pairs = tuple((first, second) for first, second in stored.get("pairs", ()))
        # Names as the constructors have them; those that a class does not have are passed over.
        parameters: Json = {
            **run.kept.settings,
            "strategy": run.strategy,
            "random_state": run.seed,
            "learning_rate_schedule": run.kept.plan.learning_rate,
            "hidden": run.hidden,
            "rows_per_person": run.rows_per_person,
            "method": run.method,
            "classes": stored["labels"],
            "columns": columns,
            "pairs": pairs or None,
            "recipe": stored["recipe"] and Recipe.from_dict(stored["recipe"]),
        }
        # Parameters are set one by one, as the constructor takes other ones in each class.
        model = cls()
        for name, value in parameters.items():
            # "all" in the papers is None in the constructor.
            if hasattr(model, name):
                setattr(model, name, None if value == "all" else value)
        path = Path(folder) / MODEL
        if stored["recipe"]:
            # Images have a head whose shape was stored; tables a network with its declarations.
            model.network_ = _load_head(path, model.recipe.head, stored)
        else:
            tabular = load_model(path)
            model.network_ = tabular.network
            model.pairs_ = pairs
            model.target = tabular.target
        model.plan_ = run.kept.plan
        model.run_ = run
        if stored["labels"]:
            # Sorted, as `fit` stores them: outputs are in this order.
            model.classes_ = np.unique(np.asarray(stored["labels"]))
        if columns is not None:
            # What scikit-learn's own checks compare at `predict`.
            model.n_features_in_ = len(columns)
            if stored["named"]:
                model.feature_names_in_ = np.array(list(columns), dtype=object)
        return model

    def _record_run(
        self,
        y: object,
        *,
        features: int,
        settings: Mapping[str, float],
        seed: int | None,
        columns: Mapping[str, Column] | None = None,
        pairs: Sequence[Pair] = (),
        recipe: Json | None = None,
        shape: list[int] | None = None,
        source: str = "the rows given to fit",
        **options: Any,
    ) -> None:
        """Store the run of the fit, when it is done, as `run_`.

        features: their number. settings: of the training. columns: declarations, of a table.
        pairs: names of columns whose joint effect was learned.
        recipe, shape: of images, the recipe's settings and the shape of a view's features.
        source: where the features are from, as papers say it.
        options: of `Run`.
        """
        from apiece.jobs.running import list_versions

        plan = self.plan_
        declared = Schema(columns or {}, name="fit")
        feature_columns: Json = {}
        if columns:
            # Features are declared anew, so that papers name what was learned from and nothing
            # else.
            feature_columns = Schema(declared.features(but=set())).to_dict()["columns"]
        number = self.target if isinstance(self.target, Numeric) else None
        labels = np.asarray(getattr(self, "classes_", ())).tolist()
        paired: Json = {"pairs": list(map(list, pairs))} if pairs else {}
        seeds = None if seed is None else (seed,)
        self.run_ = Run(
            version=__version__,
            name=type(self).__name__,
            data=Facts(
                source=source,
                packaged=False,
                label=str(getattr(y, "name", None) or "y"),
                features=features,
                schema="columns",
                classes=tuple(map(str, labels)),
                # Of the public plan; rows themselves are counted nowhere.
                training_records=plan.records,
                test_records=0,
                commonest_class_share=None,
                simulated_budgets=False,
                unit=plan.unit,
                columns=feature_columns,
                target_range=None if number is None else (number.lower, number.upper),
                target_scale="linear" if number is None else number.scale,
            ),
            strategy=plan.strategy,
            analysis=None,
            no_limit_cap=None,
            seed=seed,
            # Without its time, which could reveal something of rows to who gets the estimator.
            strategies=(Trained(plan.strategy, plan, settings, seeds, (), 0.0),),
            models=1,
            totals=(),
            finished=time.strftime("%Y-%m-%d", time.gmtime()),
            versions=list_versions(),
            estimator={
                "name": type(self).__name__,
                "labels": labels,
                "columns": declared.to_dict()["columns"],
                "named": hasattr(self, "feature_names_in_"),
                "recipe": recipe,
                "shape": shape,
                **paired,
            },
            bound=Bound.of(self.network_.state_dict(), None, seed, None),
            **options,
        )

    def _complete_run(self, X: object, y: object, people: npt.ArrayLike | None, said: Said) -> Run:
        """Return the run with the steward's entries, and with figures of held-out rows, if any."""
        check_is_fitted(self)
        run = self.run_
        # Texts are checked as those of a job's file are; levels have a form of their own.
        texts = {name: value for name, value in said.items() if name != "levels"}
        entries = read_words(texts, "levels")
        # Weights are compared with what the papers are bound to, before any paper is made.
        if run.bound is None or weights_digest(self.network_.state_dict()) != run.bound.weights:
            raise StateError(
                "network_: was changed after fit; its papers are of another: fit again"
            )
        plan = run.kept.plan
        # Named levels stand for one δ: with several the names would be ambiguous.
        has_one_delta = np.unique(plan.budget_groups.delta).size == 1
        default_levels = Levels(self.levels) if self.levels and has_one_delta else ()
        levels = read_levels(said.get("levels", default_levels), plan)
        models = run.models
        # The most that people may have spent: all fits of the account.
        if self.account is not None:
            models = max(models, len(self.account))
        run = replace(
            run,
            # Groups are named by the levels that people could choose, where these were declared.
            strategies=(replace(run.kept, plan=name_groups(levels, plan)),),
            levels=levels or run.levels,
            models=models,
            **entries,  # type: ignore[arg-type]
        )
        return run if X is None else self._test(run, X, y, people)

    def _test(self, run: Run, X: object, y: object, people: npt.ArrayLike | None) -> Run:
        """Return the run with the estimator's accuracy, or errors, on held-out rows."""
        predicted = np.asarray(self.predict(X))
        facts = run.data
        require_same_index(X, y)
        require_joined(X, y, people=people)
        ids = read_people(people, predicted.size)
        if (ids is None) == (facts.unit == "person"):
            remedy = "give" if ids is None else "leave out"
            raise InputError(f"people: the estimator was fitted by {facts.unit}; {remedy} people=")
        # Who is counted as one in the figures: a row, or a person with all rows.
        unit = np.arange(predicted.size)
        if ids is not None:
            _, unit = np.unique(ids, return_inverse=True)
        facts = replace(facts, test_records=int(unit.max()) + 1)
        if not facts.classes:
            errors = errors_of(predicted, column_or_1d(y, dtype=np.float64), unit)
            return replace(run, data=facts, strategies=(run.kept.with_tests([errors], facts.unit),))
        classes = self.classes_
        codes = encode_labels(X, y, classes)
        # Positions among the classes, on both sides of the comparison.
        predicted_codes = pd.Index(classes).get_indexer(pd.Index(predicted))
        predictions = Predictions(predicted_codes, codes, unit)
        facts = replace(facts, commonest_class_share=predictions.commonest)
        strategy = run.kept.with_tests([predictions], facts.unit)
        tested = accuracies_of(predictions, classes.size, predictions, codes, 0, {})
        return replace(run, data=facts, strategies=(strategy,), tested=tested)


def _load_head(path: Path, name: str, stored: Json) -> torch.nn.Module:
    """Return the trained head of an image classifier, by its name and its stored shape."""
    import torch

    from apiece.jobs.model import explain_damage, read_state
    from apiece.recipes.recipe import HEADS

    with explain_damage(path):
        # The layers take no memory before the stored tensors take their place.
        with torch.device("meta"):
            network = HEADS[name](tuple(stored["shape"]), len(stored["labels"]))
        # The stored tensors take the place of those on the device meta.
        network.load_state_dict(read_state(path)[0], assign=True)
    return network
