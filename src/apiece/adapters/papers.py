"""Papers of a fitted estimator: its report, its statement, and its folder with both.

A fit notes what it ran as a `Run`, so that an estimator's papers are made, checked and read back as
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
from apiece.adapters.fitting import codes_of, ids_of, require_joined, require_labels_of
from apiece.budgets.levels import Levels, Offered
from apiece.datasets import Categorical, Numeric, Schema
from apiece.errors import InputError, StateError
from apiece.jobs.config import read_words
from apiece.jobs.prepared import RunFolder, refuse_used
from apiece.jobs.results import METRICS, MODEL, PLAN, REPORT, STATEMENT, Run, statement_of
from apiece.jobs.statement import Bound, as_text
from apiece.jobs.trained import (
    Asked,
    Facts,
    Predictions,
    Trained,
    accuracies,
    errors_of,
    levels_of,
    named_by,
)
from apiece.training.charging import weights_digest

if TYPE_CHECKING:
    import torch

    from apiece.plan import Plan
    from apiece.reporting import Report


class Said(TypedDict, total=False):
    """What the steward says in the papers; see `Papers.statement`."""

    purpose: str
    controller: str
    contact: str
    valid_until: str
    levels: Asked


class Papers(BaseEstimator):
    """What a fitted estimator says of itself.

    Attributes:
        run_: What the fit ran, from public numbers and declarations alone.
    """

    plan_: Plan
    network_: torch.nn.Module
    run_: Run
    account: Sequence[Plan] | None = None
    target: object = None
    levels: Offered | None = None

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
            people: Whose each row is, where the estimator was fitted to persons.
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

        return report(self._told(X, y, people, said), edition=edition)

    def described(self) -> Run:
        """Return what was fitted, as `apiece.report` takes it.

        Raises:
            StateError: Where the network was changed after the fit.
        """
        return self._told(None, None, None, {})

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
            As `jobs.statement_of`.
        """
        return statement_of(self._told(None, None, None, said))

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
            folder: Where.
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

        run = self._told(X, y, people, said)
        refuse_used(Path(folder))
        told, facts = statement_of(run), run.data
        target = Categorical(facts.classes) if facts.classes else self.target
        columns = Schema.from_dict({"columns": facts.columns}, "").columns if facts.columns else {}
        model = TabularModel(self.network_, dict(columns), facts.label, target, told)  # type: ignore[arg-type]
        place = RunFolder(Path(folder))
        place.write(PLAN, run.kept.plan.to_json(indent=2) + "\n")
        place.write(MODEL, to_bytes(model, TABULAR if facts.columns else HEAD))
        place.write(STATEMENT, as_text(told))
        place.write(METRICS, run.to_json(indent=2) + "\n")
        place.write(REPORT, report(run).html)
        return place.path

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the fitted estimator in a folder that `save` wrote.

        Args:
            folder: Where.

        Raises:
            DataError: As `Run.load`: for weights, a plan, figures or a statement that are not what
                the statement is bound to. Who can write all of them can make others that agree.
            InputError: For the folder of another estimator.
        """
        import torch

        from apiece.jobs.model import load_model, readable, stored_state
        from apiece.recipes import Recipe
        from apiece.recipes.recipe import HEADS

        run = Run.load(folder)
        if run.estimator is None or run.estimator["name"] != cls.__name__:
            of = "apiece train" if run.estimator is None else run.estimator["name"]
            how = "apiece.jobs.load_model" if run.estimator is None else f"{of}.load"
            raise InputError(f"{folder}: is of {of}, and not of {cls.__name__}; read it by {how}")
        own, kept = run.estimator, run.kept
        columns = Schema.from_dict({"columns": own["columns"]}, str(folder)).columns if own[
            "columns"] else None  # fmt: skip
        given: Json = {
            **kept.settings, "strategy": run.strategy, "random_state": run.seed,
            "hidden": run.hidden, "rows_per_person": run.rows_per_person, "method": run.method,
            "classes": own["labels"], "columns": columns,
            "recipe": own["recipe"] and Recipe.from_dict(own["recipe"]),
        }  # fmt: skip
        model = cls()
        for name, value in given.items():
            if hasattr(model, name):
                setattr(model, name, None if value == "all" else value)
        path = Path(folder) / MODEL
        if own["recipe"]:
            head = HEADS[model.recipe.head]
            with readable(path):
                with torch.device("meta"):  # no memory for layers that are not there
                    network = head(tuple(own["shape"]), len(own["labels"]))
                network.load_state_dict(stored_state(path)[0], assign=True)
        else:
            stored = load_model(path)
            network, model.target = stored.network, stored.target
        model.network_, model.plan_, model.run_ = network, kept.plan, run
        if own["labels"]:
            model.classes_ = np.unique(np.asarray(own["labels"]))
        if columns is not None:
            model.n_features_in_ = len(columns)
            if own["named"]:
                model.feature_names_in_ = np.array(list(columns), dtype=object)
        return model

    def _note_run(
        self, y: object, *, features: int, settings: Mapping[str, float], seed: int | None,
        **how: Any,
    ) -> None:  # fmt: skip
        """Note what was run, when the fit is done: see `Run`."""
        from apiece.jobs.running import versions

        plan, state = self.plan_, self.network_.state_dict()
        columns = how.pop("columns", {})
        declared = Schema("fit", columns)
        number = self.target if isinstance(self.target, Numeric) else None
        labels = np.asarray(getattr(self, "classes_", ())).tolist()
        seeds = None if seed is None else (seed,)
        self.run_ = Run(
            version=__version__,
            name=type(self).__name__,
            data=Facts(
                source="the rows given to fit",
                packaged=False,
                label=str(getattr(y, "name", None) or "y"),
                features=features,
                schema="columns",
                classes=tuple(map(str, labels)),
                training_records=plan.records,
                test_records=0,
                commonest_class_share=None,
                simulated_budgets=False,
                unit=plan.unit,
                columns=Schema("fit", declared.features(but=set())).to_dict()["columns"]
                if columns else {},
                target_range=None if number is None else (number.lower, number.upper),
                target_scale="linear" if number is None else number.scale,
            ),
            strategy=plan.strategy,
            analysis=None,
            no_limit_cap=None,
            seed=seed,
            # Without its time, which could tell of rows to who gets the estimator.
            strategies=(Trained(plan.strategy, plan, settings, seeds, (), 0.0),),
            models=1,
            totals=(),
            finished=time.strftime("%Y-%m-%d", time.gmtime()),
            versions=versions(),
            estimator={
                "name": type(self).__name__,
                "labels": labels,
                "columns": declared.to_dict()["columns"],
                "named": hasattr(self, "feature_names_in_"),
                "recipe": how.pop("recipe", None),
                "shape": how.pop("shape", None),
            },
            bound=Bound.of(state, None, seed, None),
            **how,
        )  # fmt: skip

    def _told(self, X: object, y: object, people: npt.ArrayLike | None, said: Said) -> Run:
        """Return the run with what the steward says, and with figures of held-out rows, if any."""
        check_is_fitted(self)
        run = self.run_
        given = {name: value for name, value in said.items() if name != "levels"}
        words = read_words(given, "levels")
        if run.bound is None or weights_digest(self.network_.state_dict()) != run.bound.weights:
            raise StateError(
                "network_: was changed after fit; its papers are of another: fit again"
            )
        plan = run.kept.plan
        one_delta = np.unique(plan.budget_groups.delta).size == 1
        own = Levels(self.levels) if self.levels and one_delta else ()
        levels = levels_of(said.get("levels", own), plan)
        fits = run.models if self.account is None else max(run.models, len(self.account))
        kept = (replace(run.kept, plan=named_by(levels, plan)),)
        run = replace(run, strategies=kept, levels=levels or run.levels, models=fits, **words)  # type: ignore[arg-type]
        return run if X is None else self._tested(run, X, y, people)

    def _tested(self, run: Run, X: object, y: object, people: npt.ArrayLike | None) -> Run:
        """Return the run with how well the estimator does on held-out rows."""
        said, facts = np.asarray(self.predict(X)), run.data
        require_labels_of(X, y)
        require_joined(X, y, people=people)
        ids = ids_of(people, said.size)
        if (ids is None) == (facts.unit == "person"):
            raise InputError(f"people: the estimator was fitted by {facts.unit}; "
                             f"{'give' if ids is None else 'leave out'} people=")  # fmt: skip
        unit = np.arange(said.size) if ids is None else np.unique(ids, return_inverse=True)[1]
        facts = replace(facts, test_records=int(unit.max()) + 1)
        if not facts.classes:
            errors = errors_of(said, column_or_1d(y, dtype=np.float64), unit)
            return replace(run, data=facts, strategies=(run.kept.tested([errors], facts.unit),))
        classes = self.classes_
        true = codes_of(X, y, classes)
        answers = Predictions(pd.Index(classes).get_indexer(pd.Index(said)), true, unit)
        facts = replace(facts, commonest_class_share=answers.commonest)
        kept = run.kept.tested([answers], facts.unit)
        tested = accuracies(answers, classes.size, answers, true, 0, {})
        return replace(run, data=facts, strategies=(kept,), tested=tested)
