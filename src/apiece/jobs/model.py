"""The model of a table: what it predicts, its network, and its file.

It is a logistic or linear regression, or with hidden layers a network. The rows say nothing that is
not declared: which classes there are, and from where to where a number can go, are public.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apiece import _json
from apiece._types import Floats, Ids, Integers, Json, State
from apiece.budgets.frames import read_frame
from apiece.budgets.units import Units
from apiece.datasets import Categorical, Numeric, Schema
from apiece.datasets.encode import encode, scale, unscale, warn_unread
from apiece.datasets.pairs import Pair, append_pairs, count_features
from apiece.datasets.schema import Feature
from apiece.datasets.tables import PLAIN, Dialect
from apiece.errors import DataError, InputError
from apiece.jobs.config import Training
from apiece.jobs.people import Examples
from apiece.jobs.statement import require_same_digest, require_sealed
from apiece.jobs.trained import Errors, Predictions, errors_of
from apiece.plan import Plan
from apiece.training.callbacks import Callback
from apiece.training.charging import weights_digest
from apiece.training.randomness import Streams
from apiece.training.trainer import fit_by_sgd

# Characters of a library's error that a message repeats, at most.
_REASON_LENGTH: Final = 160
# Returns the loss of each record, from outputs and targets.
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Classes:
    """One of several declared classes: a score for each, and cross-entropy."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        is_repeated = len(set(self.names)) < len(self.names)
        if len(self.names) < 2 or is_repeated:
            raise InputError(f"classes = {self.names!r}: give at least two, each once")

    @property
    def outputs(self) -> int:
        """How many numbers a model puts out."""
        return len(self.names)

    @property
    def loss(self) -> nn.CrossEntropyLoss:
        """The cross-entropy of each record, from scores (B, classes) and encoded labels."""
        return nn.CrossEntropyLoss(reduction="none")

    def encode(self, labels: Integers) -> torch.Tensor:
        """Return the targets of training (n,), from positions in `names`."""
        return torch.from_numpy(labels)

    def score(self, outputs: torch.Tensor, targets: torch.Tensor) -> Floats:
        """Return 1 for each row (n,) whose likeliest class is the true one, else 0."""
        is_right = outputs.argmax(dim=1) == targets
        return np.asarray(is_right.double().numpy())


@dataclass(frozen=True, slots=True)
class Amount:
    """A number in a declared range: one output, and the squared error.

    Training sees the number as a feature is seen: clipped to the range and scaled to [-1, 1]. What
    is predicted is scaled back, and lies in the range.

    >>> amount = Amount(Numeric(0.0, 10.0))
    >>> amount.encode(np.array([0.0, 5.0, 99.0]))[:, 0].tolist()
    [-1.0, 0.0, 1.0]
    >>> amount.decode(torch.tensor([[0.5], [3.0]])).tolist()
    [7.5, 10.0]
    """

    declared: Numeric

    @property
    def outputs(self) -> int:
        """How many numbers a model puts out."""
        return 1

    @property
    def loss(self) -> LossFunction:
        """The squared error of each record, from outputs (B, 1) and encoded numbers."""
        return lambda outputs, targets: (outputs - targets).square().sum(dim=1)

    def encode(self, values: Floats) -> torch.Tensor:
        """Return the targets of training, (n, 1); NaN where the number is not finite."""
        # Infinity would be clipped to an end of the range as if it were a number; NaN marks the
        # record as faulty.
        finite = np.where(np.isfinite(values), values, np.nan)
        scaled = scale(finite, self.declared).astype(np.float32)
        return torch.from_numpy(scaled[:, None])

    def score(self, outputs: torch.Tensor, targets: torch.Tensor) -> Floats:
        """Return for each row (n,) 1 less the error as a share of the range, in [0, 1]."""
        error = (outputs.clamp(-1, 1) - targets).double().abs()[:, 0]
        # The range is scaled to [-1, 1], of width 2.
        return np.asarray(1 - error.numpy() / 2)

    def decode(self, outputs: torch.Tensor) -> Floats:
        """Return the numbers that outputs (n, 1) stand for, each in the range."""
        scaled = outputs[:, 0].double().numpy()
        return unscale(scaled, self.declared)


Target = Classes | Amount


@dataclass(frozen=True, slots=True)
class Weighted:
    """A target with a factor on each record's loss: the last column of what training compares."""

    target: Target

    @property
    def outputs(self) -> int:
        """How many numbers a model puts out."""
        return self.target.outputs

    @property
    def loss(self) -> LossFunction:
        """The loss of each record times its factor, from outputs and targets with factors."""
        loss = self.target.loss
        is_class = isinstance(self.target, Classes)

        def weigh(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            # What the cross-entropy compares with has to be whole numbers again.
            values = targets[:, 0].long() if is_class else targets[:, :1].to(outputs.dtype)
            factors: torch.Tensor = targets[:, 1].to(outputs.dtype)
            return loss(outputs, values) * factors

        return weigh


def weigh_targets(
    target: Target, labels: npt.NDArray[np.generic], weights: Floats | None
) -> tuple[Target | Weighted, torch.Tensor]:
    """Return a target and encoded labels, with each record's factor on the loss, if any."""
    encoded = torch.from_numpy(labels)
    if weights is None:
        return target, encoded
    # Labels and factors share one tensor, (n, 2), since training hands on one target a record; a
    # double holds every class and every float exactly.
    columns = [encoded.double().reshape(len(encoded), 1), torch.from_numpy(weights)[:, None]]
    return Weighted(target), torch.cat(columns, dim=1)


def make_target(declared: Categorical | Numeric) -> Target:
    """Return what is predicted, from the declaration of the label's column."""
    return Amount(declared) if isinstance(declared, Numeric) else Classes(declared.labels)


def build_network(
    features: int, outputs: int, hidden: tuple[int, ...], generator: torch.Generator
) -> nn.Sequential:
    """Return a network from `features` numbers to `outputs`, with hidden layers of these widths.

    Without hidden layers it starts at zero, which is where a convex problem may start; with them,
    at He's random weights: independent of data either way.
    """
    layers: list[nn.Module] = []
    for inputs, width in pairwise((features, *hidden, outputs)):
        layer = nn.Linear(inputs, width)
        # Every weight is set anew: torch's own initial weights are drawn from a generator that
        # others share.
        nn.init.zeros_(layer.bias)
        if hidden:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
        else:
            nn.init.zeros_(layer.weight)
        layers += [layer, nn.ReLU()]
    # Nothing comes after the last layer: its outputs are scores.
    return nn.Sequential(*layers[:-1])


def fit_network(
    plan: Plan,
    records: Examples,
    target: Target | Weighted,
    targets: torch.Tensor,
    training: Training,
    *,
    seed: int | None,
    make_callback: Callable[[nn.Module], Callback] | None = None,
    **options: object,
) -> nn.Sequential:
    """Return a network that DP-SGD trained by a plan.

    `targets` are the encoded labels, and `options` those of `fit_by_sgd`.
    """
    generator = Streams.from_seed(seed).initialisation()
    features = records.features.shape[1]
    network = build_network(features, target.outputs, training.hidden, generator)
    # None stands for all rows of a person.
    limit = training.rows_per_person
    fit_by_sgd(
        network,
        target.loss,
        plan,
        (torch.from_numpy(records.features), targets),
        learning_rate=training.learning_rate,
        momentum=training.momentum,
        seed=seed,
        people=records.person,
        rows_per_person=None if limit == "all" else limit,
        callbacks=[] if make_callback is None else [make_callback(network)],
        **options,  # type: ignore[arg-type]
    )
    return network


@torch.no_grad()
def evaluate(
    model: nn.Module, records: Examples, declared: Categorical | Numeric
) -> Predictions | Errors | None:
    """Return what a model predicts of usable rows and what is true; None where that says nothing.

    `declared` is the declaration of the label's column.
    """
    usable = records.select(~records.faulty)
    if not usable.labels.size:
        return None
    outputs = model(torch.from_numpy(usable.features))
    if isinstance(declared, Numeric):
        return errors_of(Amount(declared).decode(outputs), usable.labels, usable.owner)
    return Predictions(outputs.argmax(dim=1).numpy(), usable.labels, usable.owner)


@torch.no_grad()
def score_records(
    model: nn.Module, records: Examples, target: Target, targets: torch.Tensor, ids: Ids
) -> Floats:
    """Return how far a model gets each record right, in [0, 1]; a faulty row is wrong.

    `targets` are the encoded labels. A person's score is the mean over their rows, and persons
    stand in the order of `ids`.
    """
    scores = target.score(model(torch.from_numpy(records.features)), targets)
    # A faulty row's outputs are NaN, of which neither a class nor an error means anything.
    scores[records.faulty] = 0.0
    if records.person is None:
        return scores
    return Units.of(records.person, ids).mean(scores)


@dataclass(frozen=True, slots=True, eq=False)
class TabularModel:
    """A trained model with the public schema that encodes its inputs.

    Attributes:
        network: From encoded features to a score a class, or to a number.
        columns: The features' columns, by name.
        label: The column that is predicted.
        target: Its declaration: the classes, or the range of a number.
        statement: What it promises, as `statement_of` said it: its author's word. None of a model
            without.
        pairs: Columns whose features are multiplied, after those of single columns.

    Example:
        >>> import pandas as pd
        >>> from torch import nn
        >>> from apiece.datasets import Categorical, Numeric
        >>> from apiece.jobs.model import TabularModel
        >>> column, income = Numeric(0.0, 1.0), Categorical(("low", "high"))
        >>> network = nn.Sequential(nn.Linear(1, 2))
        >>> model = TabularModel(network, {"age": column}, "income", income)
        >>> model.probabilities(pd.DataFrame({"age": [0.5, 0.7]})).shape
        (2, 2)
    """

    network: nn.Sequential
    columns: dict[str, Feature]
    label: str
    target: Categorical | Numeric
    statement: Mapping[str, object] | None = None
    pairs: Sequence[Pair] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes; none where a number is predicted."""
        return self.target.labels if isinstance(self.target, Categorical) else ()

    def probabilities(self, table: object, dialect: Dialect = PLAIN) -> npt.NDArray[np.float32]:
        """Return one probability a class for every row of a table, NaN for a faulty row.

        Cells that are not as declared are counted in a `StewardWarning`.

        Args:
            table: With the model's columns: the path of a CSV or Parquet file, or a pandas, Arrow,
                Polars or DuckDB table. Its cells are read as those of the training were.
            dialect: How a CSV file is written; the decimal mark is that of texts in a table too.

        Raises:
            DataError: For a column that is missing, and a file that cannot be read.
            InputError: Where a number is predicted."""
        if not self.classes:
            raise InputError("probabilities: the model predicts a number; ask predict")
        scores = self._scores(self._features(table, dialect))
        return np.asarray(scores.softmax(dim=1).numpy())

    def predict(
        self, table: object, dialect: Dialect = PLAIN
    ) -> list[str | None] | list[float | None]:
        """Return the likeliest class of every row, or its number; None for a faulty row.

        Cells that are not as declared are counted in a `StewardWarning`.

        Args:
            table: With the model's columns: a path or a table, as `probabilities` takes it.
            dialect: How a CSV file is written; the decimal mark is that of texts in a table too.

        Raises:
            DataError: For a column that is missing, and a file that cannot be read."""
        outputs = self._scores(self._features(table, dialect))
        if isinstance(self.target, Numeric):
            numbers = Amount(self.target).decode(outputs)
            return [None if np.isnan(number) else float(number) for number in numbers]
        classes: list[str | None] = []
        for scores in outputs.numpy():
            is_faulty = np.isnan(scores).any()
            classes.append(None if is_faulty else self.classes[scores.argmax()])
        return classes

    def _features(self, table: object, dialect: Dialect) -> npt.NDArray[np.float32]:
        frame = read_frame(table, dialect)
        encoded = encode(frame, self.columns, decimal=dialect.decimal)
        warn_unread(encoded, self.columns, what="table", do="are not predicted", stacklevel=4)
        return append_pairs(encoded.features, self.columns, self.pairs)

    @torch.no_grad()
    def _scores(self, features: npt.NDArray[np.float32]) -> torch.Tensor:
        outputs: torch.Tensor = self.network(torch.from_numpy(features))
        return outputs


# The format of `model.pt` for a network on the columns of a table.
TABULAR: Final = "apiece tabular model 1"
# The format for a network on features of images, which no columns describe.
HEAD: Final = "apiece head on features 1"


def to_bytes(model: TabularModel, form: str = TABULAR) -> bytes:
    """Return the content of `model.pt`, in one of its formats: tensors and plain values only."""
    # The widths of all layers with weights; the last one is the outputs.
    widths = [int(layer.out_features) for layer in model.network if isinstance(layer, nn.Linear)]
    content = {
        "format": form,
        "hidden": widths[:-1] if form == TABULAR else [],
        "label": model.label,
        # For other readers: `target` has them too.
        "classes": list(model.classes),
        "target": Schema({model.label: model.target}).to_dict()["columns"][model.label],
        "columns": Schema(model.columns).to_dict()["columns"],
        "statement": None if model.statement is None else json.dumps(model.statement),
        # Copies, since torch saves a view with all of the storage behind it.
        "state": {
            name: value.detach().clone() for name, value in model.network.state_dict().items()
        },
    }
    if model.pairs:
        content["pairs"] = list(map(list, model.pairs))
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def replace_statement(path: Path, statement: Json) -> bytes:
    """Return the content of a run's `model.pt` with another statement about the same model."""
    with explain_damage(path):
        content = torch.load(path, weights_only=True, map_location="cpu")
    buffer = io.BytesIO()
    torch.save(content | {"statement": json.dumps(statement)}, buffer)
    return buffer.getvalue()


def load_model(path: str | Path) -> TabularModel:
    """Return the model in a run's `model.pt`.

    Nothing in the file is executed. Memory is taken only for what the file really holds, not for
    layers that it merely declares.

    Args:
        path: Of the file.

    Raises:
        DataError: For a file that holds no such model, or one that its statement is not bound to;
            also where statement.json beside a model.pt is another.

    Example:
        >>> from apiece.jobs import load_model
        >>> load_model("runs/none/model.pt")
        Traceback (most recent call last):
        ...
        apiece.errors.DataError: runs/none/model.pt: not an apiece model ...
    """
    path = Path(path)
    with explain_damage(path):
        content, target, statement = _read_content(path)
        # Shapes are compared before the network is built: a file of a few bytes must not make it
        # take memory for layers that it does not hold.
        columns = Schema.from_dict({"columns": content["columns"]}, str(path)).features(but=set())
        hidden = tuple(content["hidden"])
        pairs = tuple((first, second) for first, second in content.get("pairs", ()))
        features = count_features(columns, pairs)
        outputs = make_target(target).outputs
        _check_shapes(content["state"], (features, *hidden, outputs))
        network = build_network(features, outputs, hidden, torch.Generator())
        network.load_state_dict(content["state"])
    return TabularModel(network, columns, str(content["label"]), target, statement, pairs)


def _check_shapes(state: State, widths: tuple[int, ...]) -> None:
    """Raise `ValueError` for weights that are not those of layers between these widths."""
    for layer, (inputs, width) in enumerate(pairwise(widths)):
        # Between two layers with weights stands one without.
        name = 2 * layer
        for part, shape in (("weight", (width, inputs)), ("bias", (width,))):
            if tuple(state[f"{name}.{part}"].shape) != shape:
                raise ValueError(f"layer {layer + 1}: not of the declared {width} x {inputs}")


def read_state(path: Path) -> tuple[State, Json | None]:
    """Return the parameters in a run's `model.pt`, and its statement, which they are held against.

    Raises `DataError` as `load_model`.
    """
    with explain_damage(path):
        content, _, statement = _read_content(path)
        state: State = content["state"]
        # A network on columns is built, so that its shapes are checked; features of images have no
        # columns to build by.
        if content["format"] != HEAD:
            load_model(path)
    return state, statement


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Raise `DataError` for whatever a damaged file makes the body raise."""
    try:
        yield
    except DataError:
        raise
    # torch raises almost anything.
    except Exception as error:
        reason = " ".join(str(error).split())[:_REASON_LENGTH]
        raise DataError(f"{path}: not an apiece model ({reason}); give a run's model.pt") from None


def _read_content(path: Path) -> tuple[Json, Categorical | Numeric, Json | None]:
    """Return what a file holds, the declaration of its label, and its statement."""
    # What is checked before torch reads the file, and then before any of it is used.
    with zipfile.ZipFile(path) as archive:
        # A compressed part may unpack to any size.
        if any(part.compress_type for part in archive.infolist()):
            raise ValueError("parts are compressed")
    content: Json = torch.load(path, weights_only=True, map_location="cpu")
    for name, tensor in content["state"].items():
        # A tensor may declare more than its file holds: a view that repeats a few numbers.
        size = tensor.numel() * tensor.element_size()
        if size > tensor.untyped_storage().nbytes() or not tensor.is_contiguous():
            raise ValueError(f"{name}: is not stored in full")
    schema = Schema.from_dict({"columns": {"label": content["target"]}}, str(path))
    target = schema.target("label")
    return content, target, _read_statement(content, target, path)


def _read_statement(content: Json, target: Categorical | Numeric, path: Path) -> Json | None:
    """Return the statement in a stored model, None without; it is its author's word.

    Raises `DataError` where it is of another model, or another than statement.json beside it.
    """
    source = str(path)
    statement = None
    if content.get("statement") is not None:
        statement = require_sealed(_json.loads(str(content["statement"]), source), source)
        # Three things must agree: the statement with its own digest, the weights with the
        # statement, and all that decides how inputs are read with what the statement says of it.
        weights = weights_digest(content["state"])
        require_same_digest(weights, statement["bound_to"].get("weights"), "weights", source)
        # What decides how inputs are encoded is as much part of the model as its weights.
        stated = statement["data"] | {"hidden": statement["mechanism"]["hidden"]}
        # Of a model without pairs neither has an entry.
        stated.setdefault("pairs", [])
        for name, value in _list_stated(content, target).items():
            require_same_digest(value, stated[name], name, source)
    # A model.pt that was put into another run's folder has another statement beside it.
    neighbour = path.with_name("statement.json")
    if path.name == "model.pt" and neighbour.exists():
        stored = _json.loads(neighbour.read_bytes(), str(neighbour))
        require_same_digest(statement, stored, "the statement in it", source)
    return statement


def _list_stated(content: Json, target: Categorical | Numeric) -> Json:
    """Return what a stored model has that its statement says too, by the statement's names."""
    return {
        "label": content["label"],
        "columns": content["columns"],
        "pairs": content.get("pairs", []),
        "hidden": content["hidden"],
        "classes": [] if isinstance(target, Numeric) else list(target.labels),
        "range": [target.lower, target.upper] if isinstance(target, Numeric) else None,
        "scale": target.scale if isinstance(target, Numeric) else None,
    }
