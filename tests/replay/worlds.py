"""Small runs of everything that lets numbers out, each on a table that may be a neighbour's.

A world is a function of whose values are replaced, and by what; it returns all that anybody sees.
The plan, the order of the rows and everyone's budget stay: neighbours are compared under one plan.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from apiece import Budgets, assign
from apiece.datasets import Categorical, Numeric, Schema
from apiece.filters import GaussianFilter
from apiece.jobs import load_model, prepare, run
from apiece.jobs.config import job_from_dict
from apiece.pate import plan_votes, teach
from apiece.pate.teaching import Lessons
from apiece.queries import Session
from apiece.reporting import report
from apiece.sklearn import PrivateClassifier
from apiece.training import FilteredTrainer, Trainer
from apiece.training.stacked import StackedMlp

from .tape import Leak

SIZE, SOMEBODY, ANOTHER = 48, 5, 7
LOSS = nn.CrossEntropyLoss(reduction="none")
HOSTILE = [np.nan, np.inf, -1e30, 1e9, 0.0]


@dataclass(frozen=True)
class World:
    """A run, the values somebody may have, and what one such change may move.

    reach: what that person may add to any mechanism's input, in standard deviations of its noise,
    as their account has it; of a world that makes its own plan it is in what comes out. Values that
    are replaced move twice that. once: over all calls together, where they are of disjoint cells.
    """

    run: Callable[[Any], dict[str, Any]]
    here: Any
    there: list[Any]
    reach: float | None = None
    once: bool = False

    def check(self, out: dict[str, Any], moves: list[float]) -> None:
        """Raise `Leak` where an input moved by more than that person pays for."""
        reach = out["reach"] if self.reach is None else self.reach
        most = float(np.linalg.norm(moves)) if self.once else max(moves)
        if not most <= 2 * reach * (1 + 1e-6):
            raise Leak(f"moved {most:.3g} standard deviations of the noise, {2 * reach:.3g} paid")


def _network(width: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 2))


def _data(value: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SIZE, 3, generator=generator)
    targets = (inputs[:, 0] > 0).long()
    if value is not None:
        inputs[SOMEBODY] = value
        targets[SOMEBODY] = 1 - targets[SOMEBODY]
    return inputs, targets


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _budgets(size: int = SIZE) -> Budgets:
    return Budgets(np.where(np.arange(size) % 3, 4.0, 1.0), 1e-3)


def trained(strategy: str, *, persons: bool = False) -> World:
    """`Trainer` under a plan; somebody's values are replaced."""
    people = np.arange(SIZE) % 16 if persons else None
    budgets = _budgets(16 if persons else SIZE)
    size = 8 if persons else 24
    plan = assign(budgets, strategy, steps=4, expected_batch_size=size, clip_norm=0.5)
    more: dict[str, Any] = {"people": people, "rows_per_person": 2} if persons else {}

    def go(value: float | None) -> dict[str, Any]:
        model = _network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        trainer = Trainer(model, optimizer, LOSS, plan, _data(value), seed=3, **more)
        trainer.fit()
        return {"weights": _weights(model), "step": trainer.step_number}

    group = int(budgets.group_index[SOMEBODY])
    reach = max(
        stage.clip_norm[group] / stage.noise_stddev for stage in plan.stages if stage.noise_stddev
    )
    return World(go, None, list(HOSTILE), reach)


def filtered(steps: int = 6, *, whole: bool = False) -> World:
    """`FilteredTrainer`: others' charges and turns are the same, and one's own covers the move.

    whole: it is all moves together that somebody's whole budget must cover.
    """
    budgets, noise = np.where(np.arange(SIZE) % 3, 4.0, 1.0), 0.5 if whole else 2.0

    def go(value: float | None) -> dict[str, Any]:
        model = _network()
        accounts = GaussianFilter(budgets, 1e-3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        trainer = FilteredTrainer(
            model,
            optimizer,
            LOSS,
            accounts,
            _data(value),
            clip_norm=0.5,
            noise_stddev=noise,
            seed=3,
        )
        trainer.fit(steps)
        others = np.arange(SIZE) != SOMEBODY
        return {"weights": _weights(model), "spent": np.asarray(accounts.spent)[others]}

    reach = float(GaussianFilter(budgets, 1e-3).limit[SOMEBODY] ** 0.5) if whole else 0.5 / noise
    return World(go, None, list(HOSTILE), reach, once=whole)


CELLS = [("1000", "yes"), ("nan", "no"), ("", "yes"), ("1e400", "yes")]
SCHEMA = """
[columns.age]
kind = "numeric"
lower = 0
upper = 100
[columns.answer]
kind = "categorical"
values = ["no", "yes", "never"]
"""
AGES = np.random.default_rng(0).integers(1, 99, SIZE).astype(str)


def job(folder: Path, strategy: str, **more: Any) -> World:
    """The main job from a file; one line of it is another person's."""

    def go(cells: tuple[str, str] | None) -> dict[str, Any]:
        place = folder / ("here" if cells is None else "there")
        for number in range(100):
            out = Path(f"{place}-{number}")
            if not out.exists():
                break
        out.mkdir()
        age = AGES.astype(object)
        answer = np.where(AGES.astype(int) > 50, "yes", "no").astype(object)
        age[ANOTHER] = "unknown"
        age[SOMEBODY], answer[SOMEBODY] = ("7", "never") if cells is None else cells
        table = pd.DataFrame({
            "age": age, "answer": answer, "budget": np.where(np.arange(SIZE) % 3, 4.0, 1.0),
            "who": [f"p{i % 16:02d}" for i in range(SIZE)],
            "part": np.where(np.arange(SIZE) % 16 % 4, "train", "test"),
        })  # fmt: skip
        if "person" in more:
            table["budget"] = np.where(np.arange(SIZE) % 16 % 3, 4.0, 1.0)
        table.to_csv(out / "people.csv", index=False)
        (out / "schema.toml").write_text(SCHEMA)
        settings = {
            "source": str(out / "people.csv"), "schema": str(out / "schema.toml"),
            "label": "answer", "epsilon": "budget", "delta": 1e-3, "split": "part",
            "steps": 2, "batch_size": 8 if "person" in more else 24, "strategy": strategy,
            "seed": 0, **more,
        }  # fmt: skip
        prepared = prepare(job_from_dict({}, name="small", changes=settings), out=out / "run")
        found = run(prepared, out=out / "run")
        network = load_model(out / "run" / "model.pt").network
        page = report(found, edition="public").html
        log = [json.loads(line) for line in (out / "run" / "log.jsonl").read_text().splitlines()]
        told = [{k: v for k, v in line.items() if k not in ("at", "time", "seconds")}
                for line in log]  # fmt: skip
        return {
            "reach": _reach(prepared.plans[strategy]),
            "weights": _weights(network), "warnings": prepared.people.warnings,
            "plan": (out / "run" / "plan.json").read_text(), "log": told,
            "statement": _said(out / "run" / "statement.json"), "page": page,
        }  # fmt: skip

    return World(go, None, list(CELLS))


def _reach(plan: Any) -> float:
    """Return the largest bound over noise of the group of 4, which somebody is in."""
    group = int(np.argmax(plan.budget_groups.epsilon))
    return max(float(stage.clip_norm[group] / stage.noise_stddev) for stage in plan.stages)


def _said(path: Path) -> dict[str, Any]:
    """Return a statement but for what it is bound to: digests under a salt that it lacks."""
    said = json.loads(path.read_text())
    return {name: value for name, value in said.items() if name not in ("bound_to", "digest")}


def fitted() -> World:
    """The estimator on a DataFrame with one row of somebody else's."""
    columns = {"age": Numeric(0, 100), "city": Categorical(["Bonn", "Köln"], missing=["?"])}

    def go(cells: tuple[Any, str] | None) -> dict[str, Any]:
        generator = np.random.default_rng(0)
        table = pd.DataFrame({
            "age": generator.uniform(0, 100, SIZE), "city": generator.choice(["Bonn", "?"], SIZE)
        }).astype({"age": object})  # fmt: skip
        label = np.where(table["age"].astype(float) > 50, "old", "young").astype(object)
        if cells is not None:
            table.loc[SOMEBODY, ["age", "city"]] = cells
            label[SOMEBODY] = {"old": "young", "young": "old"}[label[SOMEBODY]]
        made = PrivateClassifier(
            ["young", "old"], columns, steps=4, batch_size=12, delta=1e-3, random_state=0
        )
        made.fit(table, label, epsilon=np.where(np.arange(SIZE) % 3, 4.0, 1.0))
        return {
            "weights": _weights(made.network_), "promises": str(made.promises_),
            "reach": _reach(made.plan_), "classes": tuple(made.classes_),
            "plan": made.plan_.public().to_json(),
        }  # fmt: skip

    return World(go, None, [(1e12, "Köln"), (-3, "Bonn"), ("50", "?")])


QUERIES = 60


def taught() -> World:
    """PATE: one row in one teacher's lessons is another's."""
    budgets = Budgets(np.array([1.0, 2.0, 3.0])[np.arange(SIZE) % 3], 1e-3)
    votes = plan_votes(budgets, "weight", teachers=12, questions=QUERIES)
    public = torch.randn(QUERIES, 3, generator=torch.Generator().manual_seed(9))
    group = int(budgets.group_index[SOMEBODY])
    own = int(votes.seats.pool[group])
    reach = float(votes.seats.copies[group] * votes.seats.weight[own]) / votes.noise.answer

    def go(value: float | None) -> dict[str, Any]:
        made = teach(
            votes, StackedMlp((3, 2)), _data(value), public, classes=2,
            lessons=Lessons(steps=5, batch_size=4), seed=0,
        )  # fmt: skip
        return {"student": made.student, "answers": made.answers}

    # a teacher that says another class moves two counts, on each of the questions
    return World(go, None, [1e9, -1e9, 0.0], reach * np.sqrt(2 * QUERIES) / 2)


QUESTIONS = [
    "count()", "sum(x)", "mean(x)", "histogram(x, 4)", "count() by city", "median(x)",
    "mean(x) where city = 'Bonn'",
]  # fmt: skip


def asked(text: str, epsilon: float = 1.0) -> World:
    """A query over a table of which one person's rows are there or not, or others."""
    columns = {"x": Numeric(0, 10), "city": Categorical(["Bonn", "Köln", "Ulm"])}
    schema = Schema(columns, person="id", rows_per_person=2)

    def go(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
        generator = random.Random(0)
        others = [
            (f"p{i % 20}", generator.uniform(0, 10), generator.choice(["Bonn", "Köln"]))
            for i in range(40)
        ]
        table = pd.DataFrame([*others, *rows], columns=["id", "x", "city"], dtype=object)
        session = Session(table, schema, seed=7)
        found = session.ask(text, epsilon=epsilon, delta=0 if "median" in text else 1e-3,
                            analysis_id="a").to_dict()  # fmt: skip
        reach = 1 / found["noise_multiplier"] if found.get("noise_multiplier") else epsilon
        return {"answer": json.dumps(found, sort_keys=True), "reach": reach}

    mine = [("me", 3.0, "Bonn"), ("me", 9.0, "Ulm")]
    hostile = [[], [("me", 1e4, "Bonn")] * 9, [("me", "nan", "?")], [("me", None, None)]]
    return World(go, mine, hostile, once=True)
