"""What a run folder keeps of a run, read strictly; nothing that can be computed is believed."""

from __future__ import annotations

import math
import re
from datetime import date
from pathlib import Path
from typing import Any

from apiece import _json
from apiece._types import Json
from apiece.errors import DataError
from apiece.jobs.accuracies import Accuracies
from apiece.jobs.binding import Bound
from apiece.jobs.regression import Errors, Interval
from apiece.jobs.trained import Facts, Level, Trained
from apiece.plan import Plan

MOST = 10**12  # of records, features and models
_whole = _json.whole(MOST)
_seed = _json.whole(2**128)


def _share(value: Any, where: str) -> float:
    found = _json.number(value, where)
    if not 0 <= found <= 1:
        raise DataError(f"{where} = {found!r}: must be in [0, 1]")
    return found


def _unit(value: Any, where: str) -> str:
    if value not in ("record", "person"):
        raise DataError(f"{where} = {value!r}: must be record or person")
    return str(value)


def _ends(value: Any, where: str) -> tuple[float, float]:
    found = _json.listed(_json.number)(value, where)
    if len(found) != 2 or not found[0] < found[1]:
        raise DataError(f"{where} = {value!r}: must be a lower and an upper end")
    return found[0], found[1]


def _interval(value: Any, where: str) -> Interval:
    reads: dict[str, _json.Reader[Any]] = dict.fromkeys(("value", "lower", "upper"), _json.number)
    found = Interval(**_json.fields(value, where, reads))
    if not found.lower <= found.value <= found.upper:
        raise DataError(f"{where} = {value!r}: an interval that does not hold its value")
    return found


def _errors(value: Any, where: str) -> Errors:
    reads: dict[str, _json.Reader[Any]] = {"mean_absolute": _interval, "r2": _interval}
    return Errors(**_json.fields(value, where, reads))


def _as_is(value: Any, where: str) -> Any:
    return value  # computed anew, and compared


def _plan(value: Any, where: str) -> Plan:
    return Plan.from_dict(value)


def _day(value: Any, where: str) -> str:
    found = _json.text(value, where)
    try:
        same = date.fromisoformat(found).isoformat() == found
    except ValueError:
        same = False
    if not same:
        raise DataError(f"{where} = {found!r}: must be a day, as 2026-01-31")
    return found


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_json.listed(_json.text)(value, where))


def _object_of(read: _json.Reader[Any], value: Any, where: str) -> Json:
    return _json.fields(value, where, dict.fromkeys(value if isinstance(value, dict) else (), read))


_FACTS: dict[str, _json.Reader[Any]] = {
    "source": _json.text,
    "packaged": _json.flag,
    "label": _json.text,
    "classes": _texts,
    "schema": _json.text,
    "features": _whole,
    "unit": _unit,
    "target_range": _json.maybe(_ends),
    "training_records": _whole,
    "test_records": _whole,
    "commonest_class_share": _json.maybe(_share),
    "simulated_budgets": _json.flag,
    "columns": lambda value, where: _object_of(_as_is, value, where),
    "fingerprints": lambda value, where: _object_of(_json.text, value, where),
}
_SETTINGS: dict[str, _json.Reader[Any]] = {
    "batch_size": _json.number,
    "steps": _whole,
    "clip_norm": _json.number,
    "learning_rate": _json.number,
    "momentum": _json.number,
}
_OF_PATE: dict[str, _json.Reader[Any]] = {
    "teachers": _whole,
    "questions": _whole,
    "answers": _whole,
    "threshold": _share,
    "semi_supervised": _whole,
}
_TRAINED: dict[str, _json.Reader[Any]] = {
    "strategy": _json.text,
    "plan": _plan,
    "settings": lambda value, where: _json.fields(value, where, _SETTINGS, _OF_PATE),
    "seeds": _json.maybe(_json.listed(_seed)),
    "test_accuracy": _json.listed(_share),
    "test_accuracy_mean": _as_is,
    "test_accuracy_stddev": _as_is,
    "test_accuracy_by_person": _json.listed(_share),
    "test_errors": _json.listed(_errors),
    "seconds": _json.number,
}


def _bound(value: Any, where: str) -> Bound:
    found = _json.fields(value, where, _BOUND)
    if not re.fullmatch("[0-9a-f]{32}", found["salt"]):
        raise DataError(f"{where}.salt = {found['salt']!r}: must be 32 hexadecimal digits")
    return Bound(**found)


_BOUND: dict[str, _json.Reader[Any]] = {
    "weights": _json.text,
    "config": _json.text,
    "salt": _json.text,
    "head": _json.maybe(_json.text),
}


def _rows(value: Any, where: str) -> int | str:
    return "all" if value == "all" else _whole(value, where)


def _object(**readers: _json.Reader[Any]) -> _json.Reader[Json]:
    return lambda value, where: _json.fields(value, where, readers)


_LEVEL: dict[str, _json.Reader[Any]] = {
    "name": _json.text,
    "epsilon": _json.number,
    "delta": _json.number,
}


def _level(value: Any, where: str) -> Level:
    return Level(**_json.fields(value, where, _LEVEL))


def _shares(value: Any, where: str) -> tuple[float, ...]:
    return tuple(_json.listed(_share)(value, where))


def _point(value: Any, where: str) -> tuple[int, float]:
    step, figure = value if isinstance(value, list) and len(value) == 2 else (None, None)
    return _whole(step, where), _json.number(figure, where)


def _tested(value: Any, where: str) -> Accuracies:
    read = _json.fields(value, where, _TESTED)
    found: Json = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
    return Accuracies(**found)


_TESTED: dict[str, _json.Reader[Any]] = {
    "accuracy": _json.maybe(_interval),
    "by_class": _json.listed(_json.maybe(_interval)),
    "confusion": _json.listed(_json.maybe(_shares)),
    "by_group": _json.listed(_json.maybe(_interval)),
    "curve": _json.listed(_point),
}
_TRAINING: dict[str, _json.Reader[Any]] = {
    "strategy": _json.text,
    "hidden": _json.listed(_whole),
    "rows_per_person": _json.maybe(_rows),
}
_RUN: dict[str, _json.Reader[Any]] = {
    "apiece": _json.text,
    "name": _json.text,
    "versions": lambda value, where: _object_of(_json.text, value, where),
    "purpose": _json.maybe(_json.text),
    "finished": _json.maybe(_day),
    "data": lambda value, where: Facts(**_json.fields(value, where, _FACTS)),
    "training": lambda value, where: _json.fields(value, where, _TRAINING, {"method": _json.text}),
    "ledger": _json.maybe(_object(analysis=_json.text)),
    "no_limit_cap": _json.maybe(_json.number),
    "levels": _json.listed(_level),
    "randomness": _object(seed=_json.maybe(_seed), noise=_as_is),
    "strategies": lambda value, where: tuple(_json.listed(_trained)(value, where)),
    "all_models": _object(models=_whole, groups=_as_is),
    "release": _as_is,
    "tested": _json.maybe(_tested),
    "bound": _json.maybe(_bound),
}


def _trained(value: Any, where: str) -> Trained:
    found = _json.fields(value, where, _TRAINED)
    del found["test_accuracy_mean"], found["test_accuracy_stddev"]
    seeds = found["seeds"]
    return Trained(
        **{
            **found,
            "seeds": None if seeds is None else tuple(seeds),
            "test_accuracy": tuple(found["test_accuracy"]),
            "test_accuracy_by_person": tuple(found["test_accuracy_by_person"]),
            "test_errors": tuple(found["test_errors"]),
        }
    )


def read_json(path: Path) -> Any:
    """Return what a file of a run folder holds; raise `DataError` where it cannot be read."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a run folder") from None
    return _json.loads(text, str(path))


def arguments(data: Any, where: str) -> tuple[Json, int]:
    """Return the arguments of `Run`, but for its totals, and how many models each strategy has.

    Raises `InputError` for what `Run.to_dict` did not write, and for parts that do not fit.
    """
    top = _json.fields(data, where, _RUN)
    strategies: tuple[Trained, ...] = top["strategies"]
    models, training = top["all_models"]["models"], top["training"]
    names = [found.strategy for found in strategies]
    if training["strategy"] not in names or len(set(names)) < len(names):
        raise DataError(f"{where}: strategy {training['strategy']!r} is not among {names}, once")
    repeats, rest = divmod(models, len(names))
    if rest or not repeats > 0:
        raise DataError(f"{where}: {models} models of {len(names)} strategies")
    for found in strategies:
        _require_fitting(found, top["data"], repeats, strategies[0].plan, where)
    _require_told(top, strategies[0].plan, where)
    ledger = top["ledger"]
    return {
        "version": top["apiece"],
        "name": top["name"],
        "data": top["data"],
        "strategy": training["strategy"],
        "hidden": tuple(training["hidden"]),
        "rows_per_person": training["rows_per_person"],
        "method": training.get("method", "dp-sgd"),
        "versions": top["versions"],
        "purpose": top["purpose"],
        "finished": top["finished"],
        "levels": tuple(top["levels"]),
        "tested": top["tested"],
        "bound": top["bound"],
        "analysis": None if ledger is None else ledger["analysis"],
        "no_limit_cap": top["no_limit_cap"],
        "seed": top["randomness"]["seed"],
        "strategies": strategies,
        "models": models,
    }, repeats


def _require_fitting(found: Trained, data: Facts, repeats: int, first: Plan, where: str) -> None:
    """Raise `DataError` where one strategy's part cannot be of the same run as the others'."""
    number = data.target_range is not None
    tested = repeats * (data.test_records > 0) * (not number)
    wrong = {
        "test_accuracy": len(found.test_accuracy) != tested,
        "test_accuracy_by_person": (
            len(found.test_accuracy_by_person) != tested * (data.unit == "person")
        ),
        "test_errors": len(found.test_errors) not in (0, repeats * number),
        "data.classes": number == bool(data.classes),
        "plan.groups": not found.plan.budget_groups.same_as(first.budget_groups),
        "plan.unit": found.plan.unit != data.unit,
        "plan.records": found.plan.records != data.training_records,
        **found.contradicted,
    }
    for name, bad in wrong.items():
        if bad:
            raise DataError(
                f"{where}: {name} of strategy {found.strategy!r} does not fit the rest of the run; "
                "give a folder as apiece train wrote it"
            )


def _require_told(top: Json, plan: Plan, where: str) -> None:
    """Raise `DataError` where levels or figures are of other budgets or classes than the run's."""
    groups, levels, tested = plan.budget_groups, top["levels"], top["tested"]
    declared = {(level.epsilon, level.delta) for level in levels}
    asked = set(zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True))
    classes = len(top["data"].classes)
    wrong = {"levels": bool(levels) and not asked <= declared}
    if tested is not None:
        rows = [row for row in tested.confusion if row is not None]
        wrong |= {
            "tested.by_class": len(tested.by_class) not in (0, classes),
            "tested.by_group": len(tested.by_group) not in (0, len(groups)),
            "tested.confusion": len(tested.confusion) != len(tested.by_class)
            or any(len(row) != classes for row in rows),
        }
    for name, bad in wrong.items():
        if bad:
            raise DataError(
                f"{where}: {name} does not fit the rest of the run; give a folder as apiece train "
                "wrote it"
            )


def require_same(stored: Any, found: Any, where: str) -> None:
    """Raise `DataError` where what is stored differs from what was computed anew.

    Numbers may differ in their last digits, since other machines round otherwise.
    """
    if isinstance(found, dict) and isinstance(stored, dict) and found.keys() == stored.keys():
        for name, value in found.items():
            require_same(stored[name], value, f"{where}.{name}")
    elif isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        for i, value in enumerate(found):
            require_same(stored[i], value, f"{where}[{i}]")
    elif type(found) in (int, float) and type(stored) in (int, float):
        if not math.isclose(found, stored, rel_tol=1e-6, abs_tol=1e-12):
            raise _differs(stored, found, where)
    elif stored != found or type(stored) is not type(found):
        raise _differs(stored, found, where)


def _differs(stored: Any, found: Any, where: str) -> DataError:
    return DataError(
        f"{where} = {stored!r}, but by the plan it is {found!r}; give a folder as apiece train "
        "wrote it"
    )
