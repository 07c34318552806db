"""What two source trees compute, compared to the bit: for changes that must change nothing.

    python -m research.benchmarks.equality BEFORE/src AFTER/src                    # all rooms
    python -m research.benchmarks.equality BEFORE/src AFTER/src --rooms plan ledger

Each room's program runs once under either tree, in a process of its own, with fixed seeds. It gives
values by name: numbers are written out in full, arrays, weights and files as digests of their
bytes. The names that differ are printed, and the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import inspect
import io
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Values = Iterator[tuple[str, Any]]

# Seeds of everything that is drawn.
SEED = 20_261_128
# A path, an address, a digest, an instant or a duration, which differ from run to run.
CHANCE = re.compile(
    r"/tmp/\S+| at 0x[0-9a-f]+|[0-9a-f]{40,}|\d{4}-\d\d-\d\d[T ][\d:.+Z]+"
    r"|\d+(\.\d+)? (s|ms|seconds|minutes)\b"
)
ROOT = Path(__file__).parents[2]


def plain(value: Any) -> Any:
    """A value as JSON that two trees can be compared by, digests in place of arrays."""
    import numpy as np

    if isinstance(value, float):
        return value.hex()
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return plain(value.tolist())
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "lower") and hasattr(value, "upper") and not isinstance(value, str):
        return [plain(value.lower), plain(value.upper)]
    if isinstance(value, str):
        return CHANCE.sub("", value)
    if value is None or isinstance(value, int):
        return value
    return CHANCE.sub("", repr(value))


def attempt(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a call returns, or the class and text of what it raises."""
    try:
        return function(*arguments, **options)
    except Exception as error:  # any: its text is compared
        return f"{type(error).__name__}: {error}"


def accounting() -> Values:
    """Curves of every kind of mechanism by each method, many at once, and calibration."""
    import numpy as np

    from apiece import accounting as rooms
    from apiece import mechanisms as m
    from apiece.accounting import slack
    from apiece.mechanisms.mixture import MixtureOfGaussians

    mechanisms = {
        "gaussian": m.Gaussian(1.3),
        "laplace": m.Laplace(2.0),
        "sampled": m.Repeated(m.Sampled(m.Gaussian(0.9), 0.02), 1500),
        "sampled laplace": m.Repeated(m.Sampled(m.Laplace(1.5), 0.1), 30),
        "composed": m.Composed(m.Repeated(m.Sampled(m.Gaussian(1.1), 0.1), 20), m.Gaussian(5.0)),
        "discrete gaussian": m.Repeated(m.DiscreteGaussian(3.0), 4),
        "discrete laplace": m.Repeated(m.DiscreteLaplace(2.5, 2), 3),
        "mixture": m.Repeated(MixtureOfGaussians(2.0, [0.5, 1, 2], [0.9, 0.07, 0.03]), 10),
        "allocated": m.Allocated(1.5, 20),
        "finite": m.Repeated(m.Finite([0.7, 0.2, 0.1], [0.2, 0.5, 0.3]), 5),
        "selected": m.Selected((m.Gaussian(3.0),), m.Runs(10.0)),
    }
    for name, mechanism in mechanisms.items():
        for method in ("pld", "rdp", "gdp"):
            curve = attempt(rooms.privacy_curve, mechanism, method=method)
            if isinstance(curve, str):
                yield f"{name} {method}", curve
                continue
            for delta in (1e-9, 1e-5, 0.1):
                yield f"{name} {method} ε({delta})", attempt(curve.epsilon, delta)
            for epsilon in (0.0, 0.3, 2.0):
                yield f"{name} {method} δ({epsilon})", attempt(curve.delta, epsilon)
            yield f"{name} {method} advantage", attempt(curve.advantage)
            yield f"{name} {method} β(.05)", attempt(curve.tradeoff, 0.05)
    grid = np.linspace(0.6, 4.0, 12)
    rates = np.geomspace(1e-4, 1.0, 12)
    yield (
        "epsilons",
        rooms.epsilons(noise_multiplier=grid, sampling_probability=rates, steps=700, delta=1e-6),
    )
    yield (
        "noise multipliers",
        rooms.noise_multipliers(epsilon=grid, sampling_probability=0.05, steps=300, delta=1e-5),
    )
    yield (
        "sampling probabilities",
        rooms.sampling_probabilities(epsilon=grid, noise_multiplier=2.0, steps=300, delta=1e-5),
    )
    first = rooms.privacy_curve(m.Gaussian(1.0))
    second = rooms.privacy_curve(m.Repeated(m.Sampled(m.Gaussian(0.7), 0.1), 50))
    divergence = rooms.excess(first, second)
    yield "excess", [divergence.forward, divergence.backward, divergence.symmetric]
    for name, convert in {
        "bounded range": slack.gaussian_of_bounded_range,
        "laplace": slack.gaussian_of_laplace,
        "pure": slack.gaussian_of_pure,
    }.items():
        yield f"gaussian of {name}", convert(grid)


def sample_budgets() -> Any:
    """Budgets of 400 people in four groups."""
    import numpy as np

    from apiece import Budgets

    groups = [("a", 0.5, 0.2), ("b", 1.0, 0.3), ("c", 3.0, 0.3), ("d", 8.0, 0.2)]
    if "seed" in inspect.signature(Budgets.from_groups).parameters:
        return Budgets.from_groups(groups, 400, 1e-5, seed=SEED)
    return Budgets.from_groups(groups, 400, 1e-5, generator=np.random.default_rng(SEED))


def plan() -> Values:
    """Plans of all strategies, as JSON, with their verification, exposure and contract."""
    import apiece
    from apiece import contract

    budgets = sample_budgets()
    strategies = [
        apiece.Uniform(), apiece.Uniform("loosest"), apiece.Sample(), apiece.Scale(),
        apiece.Hybrid(), apiece.Hybrid(excess=0.05), apiece.Threshold(), apiece.Sequential(),
        apiece.JorgensenSampling(), apiece.Rounds(), apiece.AdaPDP(), apiece.Allocate(),
    ]  # fmt: skip
    for strategy in strategies:
        for method in ("pld", "rdp"):
            name = f"{strategy!r} {method}"
            result = attempt(
                apiece.assign,
                budgets,
                strategy,
                steps=300,
                expected_batch_size=64,
                clip_norm=1.0,
                method=method,
            )
            if isinstance(result, str):
                yield name, result
                continue
            yield f"{name} json", attempt(result.to_json)
            yield f"{name} hash", attempt(getattr, result, "hash")
            verification = attempt(result.verify, budgets)
            names = ("epsilon", "delta", "epsilon_spent", "kept", "bound", "forward")
            values = {part: attempt(getattr, verification, part) for part in names}
            yield f"{name} verification", values
            if strategy in strategies[:6]:
                yield f"{name} contract", repr(attempt(contract.check, result, budgets))
    settings = {"steps": 200, "expected_batch_size": 32, "clip_norm": 1.0}
    yield "enforce", attempt(contract.enforce(budgets, excess=0.02, **settings).to_json)
    target = budgets.ids[0] if hasattr(budgets, "ids") else 0
    yield (
        "manipulation",
        repr(attempt(contract.budget_manipulation, budgets, target, **settings)),
    )
    yield (
        "collusion",
        repr(attempt(contract.collusion, budgets, target, shares=[0.2, 0.6], **settings)),
    )
    yield "explain", repr(contract.explain(1.3, 1e-6))


def filters() -> Values:
    """What filters admit and spend over adaptive histories."""
    import numpy as np

    import apiece

    rng = np.random.default_rng(SEED)
    epsilon = rng.uniform(0.2, 3.0, 50)
    guards = {
        "gaussian": apiece.GaussianFilter(epsilon, 1e-5),
        "gaussian with slack": apiece.GaussianFilter(epsilon, 1e-5, slack=5e-6),
        "renyi": apiece.RenyiFilter(epsilon, 1e-5),
    }
    for name, guard in guards.items():
        for step in range(40):
            norms = rng.uniform(0, 1.0, 50)
            yield f"{name} {step} admits", attempt(guard.admit, norms, 2.5)
        yield f"{name} spent", attempt(getattr, guard, "spent")
        yield f"{name} remaining", attempt(getattr, guard, "remaining")
    meter = apiece.Odometer(50, order=8.0)
    for _ in range(10):
        meter.add(rng.uniform(0, 1.0, 50), 2.5)
    yield "odometer", [meter.loss, meter.epsilon(1e-5), meter.throughout(1e-5)]


def _networks() -> dict[str, tuple[Any, Any, Any, Any]]:
    """Models with inputs, targets and loss, all seeded."""
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(4, 6, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, sequence: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(sequence)[0][:, -1])

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(20, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(self.embedding(tokens)).mean(1))

    class Scrambled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 1, 4))

        def forward(self, vectors: torch.Tensor) -> torch.Tensor:
            return (vectors[:, None, :] * self.weight.transpose(0, 1)).sum(1)

    torch.manual_seed(SEED)
    classes = torch.randint(0, 3, (12,))
    cross_entropy = nn.CrossEntropyLoss(reduction="none")
    mlp = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))
    image = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )
    return {
        "mlp": (mlp, torch.randn(12, 5), classes, cross_entropy),
        "convolution": (image, torch.randn(12, 1, 8, 8), classes, cross_entropy),
        "lstm": (Recurrent(), torch.randn(12, 5, 4), classes, cross_entropy),
        "transformer": (Attention(), torch.randint(0, 20, (12, 6)), classes, cross_entropy),
        "scrambled": (Scrambled(), torch.randn(12, 4), classes, cross_entropy),
    }


def clipping() -> Values:
    """Clipped sums of several models, proved and alone; what is proved and what is refused."""
    import torch
    from torch import nn

    import apiece

    for name, (model, inputs, targets, loss) in _networks().items():
        for method in ("proved", "alone"):
            model.eval()
            clipped = attempt(apiece.clip_and_sum, model, loss, inputs, targets, 0.7, method=method)
            if isinstance(clipped, str):
                yield f"{name} {method}", clipped
                continue
            yield f"{name} {method} gradients", dict(clipped.gradients)
            yield f"{name} {method} norms", clipped.norms
            yield f"{name} {method} losses", clipped.losses

    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layer(inputs - inputs.mean(0))

    refused = {
        "batch norm": nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        "mixing": Mixing(),
    }
    for name, model in refused.items():
        torch.manual_seed(SEED)
        inputs = torch.randn(12, 5)
        targets = torch.randint(0, 3, (12,))
        loss = nn.CrossEntropyLoss(reduction="none")
        yield (
            f"refused {name}",
            attempt(apiece.clip_and_sum, model, loss, inputs, targets, 1.0, method="proved"),
        )


def training() -> Values:
    """Trained weights, proofs and the steps of runs of several strategies, resumed ones too."""
    import torch

    import apiece

    budgets = sample_budgets()
    for strategy in (apiece.Sample(), apiece.Scale(), apiece.Hybrid(excess=0.05), apiece.Uniform()):
        torch.manual_seed(SEED)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        inputs = torch.randn(400, 6)
        targets = (inputs[:, 0] > 0).long()
        dataset = torch.utils.data.TensorDataset(inputs, targets)
        plan = apiece.assign(budgets, strategy, steps=12, expected_batch_size=50, clip_norm=1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "half"
            trainer = apiece.Trainer(model, optimizer, loss, plan, dataset, seed=7)
            for _ in range(6):
                trainer.step()
            trainer.save(path)
            half = {name: weights.clone() for name, weights in model.state_dict().items()}
            yield f"{strategy!r} at half", half
            saved = path if path.is_file() else next(iter(sorted(path.rglob("*.pt"))), path)
            if saved.is_file():
                state = torch.load(saved, weights_only=True)
                yield f"{strategy!r} checkpoint", _without_chance(state)
            trainer.fit()
        yield f"{strategy!r} weights", dict(model.state_dict())
        yield f"{strategy!r} proof", repr(trainer.proof)


def _without_chance(state: Any) -> Any:
    """A checkpoint's content, its keys in order, without its place: the inode of a file."""
    if isinstance(state, dict):
        parts = sorted(state.items(), key=str)
        return {str(name): _without_chance(part) for name, part in parts if name != "place"}
    if isinstance(state, list | tuple):
        return [_without_chance(part) for part in state]
    return state


def jobs() -> Values:
    """Files of runs of every kind of job, resumed ones too, and refusals of settings and tables."""
    import pandas as pd

    from apiece.jobs import prepare, read_job
    from apiece.jobs.config import job_from_dict

    kinds: dict[str, dict[str, Any]] = {
        "scale": {"strategy": "scale", "hidden": [4]},
        "many": {"strategies": ["uniform", "scale", "sample"], "strategy": "sample", "seeds": 2},
        "number": {"label": "height"},
        "drawn": {"split": None, "momentum": 0.5, "learning_rate": 0.2},
        "persons": {"person": "who", "rows_per_person": 2, "split": None},
        "named": {"epsilon": "wish", "levels": {"low": 2.0, "high": 8.0}, "steps": 150},
        "teachers": {"method": "pate", "teachers": 4, "questions": 3, "public_share": 0.5},
        "student": {
            "method": "pate", "teachers": 4, "questions": 3, "public": "public.csv",
            "person": "who", "threshold": 0.3, "answers": 2,
        },
        "search": {"space": {"steps": [2, 4], "learning_rate": {"uniform": [0.1, 2]}}, "runs": 2},
        "scored": {
            "space": {"learning_rate": [0.1, 1, 2]}, "runs": {"mean": 2, "law": "poisson"},
            "validation": "public.csv",
        },
        "schedule": {
            "noise_schedule": {"points": [[0, 2], [2, 1]], "between": "hold"},
            "learning_rate_schedule": {"points": [[0, 1], [3, 0.1]]},
        },
        "simulated": {
            "epsilon": None, "groups": [{"name": "a", "epsilon": 2.0, "share": 0.5},
            {"name": "b", "epsilon": float("inf"), "share": 0.5}], "no_limit_cap": 9.0,
        },
        "packaged": {"source": "german", "label": None, "schema": None, "split": None,
                     "epsilon": None, "groups": [{"name": "a", "epsilon": 2.0, "share": 1.0}]},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _write_people()
        common = {
            "source": "people.csv", "schema": "schema.toml", "label": "answer", "split": "part",
            "epsilon": "budget", "delta": 1e-3, "steps": 5, "batch_size": 10, "seed": SEED,
        }  # fmt: skip
        for name, changes in kinds.items():
            settings = {**common, **changes}
            if settings.get("method") == "pate":
                settings["batch_size"] = 4
            settings = {key: value for key, value in settings.items() if value is not None}
            job = job_from_dict({}, name=name, changes=settings)
            for stop in (None, 3):
                out = Path(f"{name}-{stop}")
                prepared = attempt(prepare, job, out=out)
                if isinstance(prepared, str):
                    yield name, prepared
                    break
                people = prepared.people
                yield f"{out} people", [people.train.features, people.test.features]
                yield f"{out} notes", [list(people.warnings), prepared.private_notes]
                yield from _run_files(prepared, out, stop)
            yield (
                f"{name} config",
                attempt(lambda path: read_job(path).to_dict(), out / "config.toml"),
            )
        table = pd.read_csv("people.csv")
        for name, bad in {
            "one class": table.assign(answer="no"), "letters": table.assign(age="?"),
            "commas": table.assign(age="1,5"), "cases": table.assign(answer="YES"),
            "no part": table.assign(part="x"), "no age": table.drop(columns="age"),
        }.items():  # fmt: skip
            bad.to_csv("bad.csv", index=False)
            job = job_from_dict({}, name="bad", changes={**common, "source": "bad.csv"})
            yield f"table {name}", attempt(prepare, job, out=Path("bad"))
        yield from _refused_settings()


def _write_people() -> None:
    """Write a table of people with several rows each, public rows, and their schema."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(SEED)
    size = 120
    person = rng.integers(0, 70, size)
    people = pd.DataFrame({
        "age": rng.integers(1, 120, size).astype(float), "height": rng.normal(170, 9, size),
        "colour": rng.choice(["red", "blue", "Blue", ""], size),
        "who": np.char.add("p", person.astype(str)),
        "budget": np.where(person % 2, 2.0, 8.0), "wish": np.where(person % 2, "low", "high"),
        "part": np.where(person % 4, "train", "test"),
    })  # fmt: skip
    people["answer"] = np.where(people["age"] > 50, "yes", "no")
    people.loc[5, "age"] = np.nan
    people.to_csv("people.csv", index=False)
    people[["age", "height", "colour", "answer"]][:40].to_csv("public.csv", index=False)
    Path("schema.toml").write_text(
        """
        [columns.age]
        kind = "numeric"
        lower = 0
        upper = 100
        [columns.height]
        kind = "numeric"
        lower = 100
        upper = 200
        [columns.colour]
        kind = "categorical"
        values = ["red", "blue"]
        [columns.answer]
        kind = "categorical"
        values = ["no", "yes"]
        """,
        encoding="utf-8",
    )


def _run_files(prepared: Any, out: Path, stop: int | None) -> Values:
    """Files of a run; one with `stop` is interrupted at that step, and gone on with."""
    import torch

    from apiece.jobs import Run, run
    from apiece.jobs.prepared import prepare_again

    calls = []

    def watch(*event: Any) -> None:
        calls.append(list(event))
        if stop is not None and len(calls) == stop:
            raise KeyboardInterrupt

    listens = inspect.signature(run).parameters
    listener = "progress" if "progress" in listens else "watch"
    with contextlib.suppress(KeyboardInterrupt):
        attempt(run, prepared, out=out, **{listener: watch})
    if stop is not None:
        note = json.loads((out / "checkpoints" / "job.json").read_text())
        yield f"{out} interrupted", [note, sorted(path.name for path in out.iterdir())]
        again = prepare_again(out)
        yield f"{out} steps made", [again.steps, _count_steps(out / "checkpoints")]
        run(again, out=out, **{listener: lambda *event: calls.append(list(event))})
    yield f"{out} steps", calls
    for path in sorted(out.iterdir()):
        name = f"{out} {path.name}"
        if path.name == "model.pt":
            content = torch.load(path, weights_only=True)
            yield name, {key: part for key, part in content.items() if key != "statement"}
        elif path.name == "log.jsonl":
            lines = path.read_text().splitlines()
            yield name, [_numbers(json.loads(line)) for line in lines]
        elif path.suffix == ".json":
            content = _numbers(json.loads(path.read_text()))
            yield name, {key: part for key, part in content.items() if key != "bound_to"}
        else:
            yield name, path.read_text()
    loaded = Run.load(out)
    yield f"{out} loaded", [_numbers(loaded.to_dict()), repr(loaded), loaded.release.fit]
    content = (out / "metrics.json").read_text()
    for words, change in (
        ('"models": 1', '"models": 2'), ('"steps": 5', '"steps": "five"'),
        ('"unit": "record"', '"unit": "person"'), ('"strategy": "sample"', '"strategy": "x"'),
    ):  # fmt: skip
        (out / "metrics.json").write_text(content.replace(words, change))
        yield f"{out} damaged {words}", attempt(lambda: _numbers(Run.load(out).to_dict()))
    (out / "metrics.json").write_text(content)


def _count_steps(folder: Path) -> int:
    """Steps that the checkpoints of a run hold, all models together."""
    import torch

    from apiece.training.checkpoints import CheckpointFolder

    folders = [path.parent for path in folder.glob("*/state.pt")]
    states = [torch.load(CheckpointFolder(path).state, weights_only=True) for path in folders]
    return sum(int(state["step"]) for state in states)


def _refused_settings() -> Values:
    """Texts of the errors of single settings, of sections and of what does not go together."""
    from apiece.jobs.config import SETTINGS, job_from_dict

    values = [
        3,
        -1,
        0,
        1,
        0.5,
        "x",
        "all",
        True,
        [3],
        [],
        {},
        {"a": 1},
        math.nan,
        math.inf,
        10**400,
    ]
    for name in SETTINGS:
        for value in values:
            base = {"source": "people.csv", "epsilon": "budget"}
            found = attempt(job_from_dict, {}, name="x", changes={**base, name: value})
            text = found if isinstance(found, str) else found.to_dict()
            yield f"setting {name} = {str(value)[:20]}", json.dumps(text)
    sections: list[Any] = [
        {"dta": {}}, {"data": 3}, {"data": {"soure": "x"}}, {"data": {"epsilon": "x"}}, {},
        {"data": {"source": "a.csv"}}, {"data": {"source": "a.csv"}, "budgets": {"epsilon": "e"},
        "compare": {"settings": {"scale": {"steps": 3}}}},
    ]  # fmt: skip
    for section in sections:
        found = attempt(job_from_dict, section, name="x", changes={})
        yield f"section {section}", found if isinstance(found, str) else found.to_dict()


def ledger() -> Values:
    """Answers, balances, entries and exports of a ledger with a history of all operations."""
    import numpy as np
    import pandas as pd

    import apiece

    rng = np.random.default_rng(SEED)
    ids = [f"p{number}" for number in range(200)]
    with tempfile.TemporaryDirectory() as folder:
        book = apiece.Ledger.open(f"sqlite:///{folder}/people.db")
        book.enroll(ids, epsilon=rng.uniform(0.3, 3.0, 200), delta=1e-6)
        for number in range(12):
            chosen = rng.choice(ids, 80, replace=False).tolist()
            norms = rng.uniform(0.1, 1.0, 80)
            admitted = attempt(book.reserve, f"a{number}", chosen, norms, 4.0)
            yield f"admitted {number}", list(map(str, admitted))
            yield f"committed {number}", attempt(book.commit, f"a{number}", {"n": 1})
        yield "withdrawn", type(book.withdraw(ids[:5])).__name__
        yield "spent", book.spent(ids)
        yield "remaining", book.remaining(ids)
        yield "slack", book.remaining_slack(ids)
        yield "status", [attempt(book.status, "a3"), attempt(book.status, "zz")]
        yield "again", attempt(book.reserve, "a3", ids[:3], np.ones(3), 4.0)
        yield "result", book.result("a3")
        yield "entries", sum(1 for _ in book.history())
        found = book.verify()
        yield "verified", [found.entries, found.people, list(found.problems)]
        yield "enrolled twice", attempt(book.enroll, ids[:2], epsilon=1.0, delta=1e-6)
        yield "unknown", attempt(book.spent, ["nobody"])
        book.export(Path(folder) / "accounts.parquet")
        accounts = pd.read_parquet(Path(folder) / "accounts.parquet")
        yield "export", accounts.to_csv(index=False)


# What tables are declared as, in the words of a question.
DECLARATIONS: tuple[dict[str, Any], ...] = (
    {"person": "id"},
    {"person": "id", "bounds": {"x": (0, 8)}, "groups": {"g": ["u", 7, 0.5, True]}},
    {"person": "id", "groups": {"g": ["01", ""], "h": [False, True]}, "rows_per_person": 2},
    {"person": "id", "kinds": {"n": "numeric", "t": "text", "d": "date", "b": "boolean"}},
    {"person": "id", "bounds": {"n": (-1.5, 3)}, "groups": {"n": [1, 2]}, "decimal": ","},
    {"person": "id", "groups": {"n": ["1", "2.0"], "t": ["1"]},
     "kinds": {"n": "numeric", "t": "text"}},
    {"person": "id", "bounds": {"n": (0, 9)}, "missing": {"n": ["-99"], "d": ["n/a"]},
     "kinds": {"d": "date"}, "formats": {"d": "%d.%m.%Y"}},
)  # fmt: skip


def _declare(
    person: str,
    rows_per_person: int | None = None,
    decimal: str = ".",
    **declared: dict[str, Any],
) -> Any:
    """A tree's schema of what a question needs; older trees declare it in these words."""
    from apiece import datasets
    from apiece import queries as rooms

    if hasattr(rooms, "Schema"):
        return rooms.Schema(person, rows_per_person=rows_per_person, decimal=decimal, **declared)
    bounds, groups, kinds, missing, formats = (
        declared.get(name, {}) for name in ("bounds", "groups", "kinds", "missing", "formats")
    )
    columns: dict[str, Any] = {}
    for name in [*bounds, *groups, *kinds]:
        settings: dict[str, Any] = {"missing": missing.get(name, ())}
        if name in groups:
            settings["values"] = groups[name]
        if name in formats:
            settings["format"] = formats[name]
        if name in bounds:
            columns[name] = datasets.Numeric(*bounds[name], **settings)
        elif name in kinds:
            columns[name] = getattr(datasets, kinds[name].capitalize())(**settings)
        else:
            columns[name] = datasets.Categorical(**settings)
    return datasets.Schema(columns, person=person, rows_per_person=rows_per_person, decimal=decimal)


def _declared_terms(schema: Any) -> Any:
    """What a ledger compares of a schema, in the order of its columns."""
    if hasattr(schema, "terms"):
        return json.dumps(schema.terms)
    from apiece.queries.declarations import Declarations

    return json.dumps(Declarations.from_schema(schema).terms)


def queries() -> Values:
    """Answers of all aggregates with fixed random bits, what they charge, and refusals."""
    import numpy as np
    import pandas as pd

    from apiece.queries import Session, query_cost

    rng = np.random.default_rng(SEED)
    size = 600
    people = pd.DataFrame({
        "who": [f"p{number}" for number in rng.integers(0, 300, size)],
        "x": rng.normal(50, 20, size),
        "y": rng.uniform(-1, 1, size),
        "g": rng.choice(["a", "b", None, "d"], size),
        "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, size), "D"),
    })  # fmt: skip
    schema = _declare(
        person="who", bounds={"x": (0, 100), "y": (-1, 1)}, groups={"g": ["a", "b", "c"]},
        rows_per_person=3, kinds={"day": "date"},
    )  # fmt: skip
    for number, declared in enumerate(DECLARATIONS):
        yield f"terms {number}", _declared_terms(_declare(**declared))
    questions = [
        "count()", "count(persons)", "count(persons) by g", "sum(x)", "mean(x) by g",
        "variance(y)", "covariance(x, y)", "histogram(x, 10)", "histogram(x, 7) by g",
        "quantile(x, .25, .5, .75)", "regression(x, y)", "interval(x, .9)",
        "mean(x) where g = 'a' and y > .2", "count() where day >= '2024-05-01' or x is null",
        "mean(z)", "median(x)", "count() by x", "count() where",
    ]  # fmt: skip
    if "seed" in inspect.signature(Session).parameters:
        session = Session(people, schema, seed=SEED)
    else:
        session = Session(people, schema, bits=random.Random(SEED).getrandbits)
    for question in questions:
        for delta in (0.0, 1e-6):
            answer = attempt(session.ask, question, epsilon=0.8, delta=delta)
            name = f"{question} δ={delta}"
            if isinstance(answer, str):
                yield name, answer
                continue
            yield name, [answer.groups, answer.noise_multiplier, answer.counted, answer.guarantee]
            yield (
                f"{name} cost",
                repr(attempt(query_cost, question, schema, epsilon=0.8, delta=delta)),
            )


def audit() -> Values:
    """Bounds, attacks and statistics over seeded scores; votes of teachers."""
    import numpy as np

    from apiece import audit as rooms
    from apiece import pate

    rng = np.random.default_rng(SEED)
    inside, outside = rng.normal(1, 1, 400), rng.normal(0, 1, 400)
    for method in ("clopper-pearson", "gdp"):
        yield (
            f"lower bound {method}",
            repr(attempt(rooms.lower_bound, inside, outside, delta=1e-5, method=method)),
        )
    yield "anytime", repr(attempt(rooms.anytime_bound, inside, outside, delta=1e-5))
    scores = np.concatenate([inside, outside])
    member = np.arange(800) < 400
    for method in ("dp", "gdp"):
        yield (
            f"one run {method}",
            repr(attempt(rooms.one_run, scores, member, delta=1e-5, method=method)),
        )
    groups = np.where(np.arange(800) % 2, "a", "b")
    yield (
        "by group",
        repr(attempt(rooms.one_run_by_group, scores, member, groups, delta=1e-5)),
    )
    curves = attempt(rooms.roc_by_group, scores, member, groups)
    yield "roc", repr(curves)
    models = 32
    included = rng.random((models, 60)) < 0.5
    confidences = rng.normal(included * 1.0, 1.0)
    shadows = attempt(
        rooms.ShadowScores,
        np.arange(60),
        np.where(np.arange(60) % 2, "a", "b"),
        included,
        confidences,
    )
    for variant in ("online", "offline"):
        yield (
            f"lira {variant}",
            attempt(rooms.lira, confidences[0], shadows, variant=variant),
        )
    yield "privacy scores", repr(attempt(rooms.privacy_scores, shadows))
    for strategy in ("uniform", "upsample", "weight"):
        made = attempt(pate.plan_votes, sample_budgets(), strategy, teachers=20, questions=50)
        yield f"votes {strategy}", repr(made)


def sensitivity() -> Values:
    """Partial sensitivities of expressions and of a network."""
    import numpy as np
    import torch

    import apiece

    ranges = {"a": (1.0, 2.0), "b": (0.5, 3.0)}
    for expression in ("a**2 + exp(2*b - a)", "a*b", "log(a) + b**3", "sin(a)*cos(b)"):
        query = (getattr(apiece, "Expression", None) or apiece.Query)(expression, ranges)
        yield f"{expression} global", repr(attempt(query.global_sensitivity))
        yield f"{expression} lipschitz", repr(attempt(query.lipschitz_constant))
        yield f"{expression} latex", repr(attempt(query.latex))
        points = {"a": np.array([1.2, 1.9]), "b": np.array([0.6, 2.5])}
        result = attempt(apiece.partial_sensitivity, query, points)
        yield f"{expression} at points", plain(getattr(result, "norms", result))
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    inputs, targets = torch.randn(9, 4), torch.randint(0, 2, (9,))
    function = apiece.ModelLoss(model, torch.nn.CrossEntropyLoss(reduction="none"))
    result = attempt(apiece.partial_sensitivity, function, inputs, targets)
    yield "network", plain([getattr(result, "raw", result), getattr(result, "norms", None)])


def estimators() -> Values:
    """Predictions and promises of the estimators on a packaged table."""
    import numpy as np

    from apiece.datasets import Categorical, Numeric, load
    from apiece.sklearn import PrivateClassifier

    people = load("adult").iloc[:1500]
    names = ["age", "hours_per_week", "sex"]
    columns = {
        "age": Numeric(17, 90),
        "hours_per_week": Numeric(1, 99),
        "sex": Categorical(("Female", "Male")),
    }
    rng = np.random.default_rng(SEED)
    epsilon = rng.choice([0.5, 2.0, 8.0], len(people))
    for hidden in ((), (8,)):
        classifier = PrivateClassifier(
            ["<=50K", ">50K"], columns, steps=40, hidden=hidden, random_state=3
        )
        fitted = attempt(classifier.fit, people[names], people["income"], epsilon=epsilon)
        if isinstance(fitted, str):
            yield f"classifier {hidden}", fitted
            continue
        yield f"classifier {hidden} chances", fitted.predict_proba(people[names])
        yield f"classifier {hidden} promises", repr(attempt(getattr, fitted, "promises_"))
        yield f"classifier {hidden} plan", fitted.plan_.to_json()


COMMANDS = {
    "plan": "plan --records 5000 --groups strict:1:0.34,medium:2:0.43,weak:3:0.23 --delta 1e-5 "
    "--batch-size 256 --steps 300 --clip-norm 0.4 --strategy sample --json",
    "plan, in words": "plan --records 5000 --groups strict:1:0.5,weak:3:0.5 --delta 1e-5 "
    "--batch-size 256 --steps 300 --clip-norm 0.4 --strategy scale",
    "account": "account --noise-multiplier 1.0 --sampling-probability 0.02 --steps 1465 "
    "--delta 1e-5 --json",
    "explain": "explain --epsilon 1.3 --delta 1e-6",
    "sensitivity": "sensitivity 'a**2 + exp(2*b - a)' --range a=1:2 --range b=.5:3 --json",
    "risk": "risk --records 2000 --groups strict:1:0.5,weak:4:0.5 --delta 1e-5 --batch-size 64 "
    "--steps 100 --json",
    "wrong epsilon": "plan --records 5000 --groups strict:-1:1 --delta 1e-5 --batch-size 256 "
    "--steps 300",
    "unknown flag": "plan --recods 5000",
}


def commands() -> Values:
    """Output, messages and exit status of commands; a small run and its report's numbers."""
    import shlex

    for name, line in COMMANDS.items():
        words = [sys.executable, "-m", "apiece", *shlex.split(line)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        output = CHANCE.sub("", done.stdout)
        yield name, [done.returncode, output, CHANCE.sub("", done.stderr)]
    with tempfile.TemporaryDirectory() as folder:
        job = (ROOT / "examples" / "adult.toml").read_text()
        job = job.replace("seeds = 5", "seeds = 1")
        job = re.sub(r"steps = \d+", "steps = 12", job)
        (Path(folder) / "job.toml").write_text(job)
        words = [sys.executable, "-m", "apiece", "train", "job.toml", "--out", "run"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)
        yield "train", [done.returncode, CHANCE.sub("", done.stderr) if done.returncode else ""]
        for path in sorted(Path(folder, "run").rglob("*")):
            name = str(path.relative_to(folder))
            if path.suffix == ".json":
                yield name, _numbers(json.loads(path.read_text()))
            elif path.suffix == ".pt":
                import torch

                with contextlib.suppress(Exception):
                    yield name, _without_chance(torch.load(path, weights_only=True))


def _numbers(content: Any) -> Any:
    """What a report's JSON says, without times, paths and versions."""
    if isinstance(content, dict):
        return {
            name: _numbers(part)
            for name, part in content.items()
            if not re.search("second|time|date|version|path|when|folder|machine|digest|hash", name)
        }
    if isinstance(content, list):
        return [_numbers(part) for part in content]
    return CHANCE.sub("", content) if isinstance(content, str) else content


ROOMS: dict[str, Callable[[], Values]] = {
    "accounting": accounting,
    "plan": plan,
    "filters": filters,
    "clipping": clipping,
    "training": training,
    "jobs": jobs,
    "ledger": ledger,
    "queries": queries,
    "audit": audit,
    "sensitivity": sensitivity,
    "estimators": estimators,
    "commands": commands,
}


def leave_class(value: Any) -> Any:
    """A value, or of a refusal the class of its error."""
    if isinstance(value, list):
        return [leave_class(part) for part in value]
    if isinstance(value, dict):
        return {name: leave_class(part) for name, part in value.items()}
    if isinstance(value, str) and (found := re.match(r"\"?([A-Z]\w*(?:Error|Warning)): ", value)):
        return found[1]
    return value


def values_of(room: str, source: Path) -> dict[str, Any]:
    """Values of a room's program under a source tree."""
    settings = {"PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    words = [sys.executable, __file__, "--values", room]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            env=os.environ | settings,
            cwd=folder,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{room} under {source}: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", nargs="?", type=Path)
    parser.add_argument("after", nargs="?", type=Path)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument(
        "--classes-of-errors",
        action="store_true",
        help="compare the classes of refusals, whose texts may be better now",
    )
    parser.add_argument(
        "--leave-out",
        nargs="+",
        metavar="NAME",
        default=[],
        help="beginnings of the names of values that were meant to change",
    )
    parser.add_argument("--values", choices=ROOMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.values:
        with contextlib.redirect_stdout(io.StringIO()):
            values = {name: plain(value) for name, value in ROOMS[options.values]()}
        print(json.dumps(values))
        return 0
    if options.before is None or options.after is None:
        parser.error("give two source trees, BEFORE/src and AFTER/src")
    different = 0
    for room in options.rooms:
        before = values_of(room, options.before)
        after = values_of(room, options.after)
        if options.classes_of_errors:
            before = {name: leave_class(value) for name, value in before.items()}
            after = {name: leave_class(value) for name, value in after.items()}
        left_out = tuple(options.leave_out)
        names = [
            name
            for name in before | after
            if before.get(name) != after.get(name) and not name.startswith(left_out)
        ]
        for name in names:
            print(f"{room}: {name}: {str(before.get(name))[:200]}")
            print(f"    now {str(after.get(name))[:200]}")
        print(f"{room}: {len(before) - len(names)} of {len(before)} values are equal", flush=True)
        different += len(names)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
