"""Units and tables hold together."""

from typing import Any

import pytest

from apiece.errors import InputError
from research.experiment import Experiment, Table, unit_key


def made(**changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        "name": "one", "paper": "", "shows": "", "cost": "",
        "units": lambda seeds, scale: [{"seed": s, "scale": scale} for s in range(seeds)],
        "run": lambda unit, place: 1, "tables": lambda done: [], "seeds": 2,
    }  # fmt: skip
    return Experiment(**settings | changes)


def test_units_of_seeds_and_scale() -> None:
    assert len(made().list_units(None, 1.0)) == 2
    assert made().list_units(1, 0.5) == [{"seed": 0, "scale": 0.5}]


@pytest.mark.parametrize(("seeds", "scale"), [(0, 1.0), (1, 0.0), (1, 1.5), (1, float("nan"))])
def test_bad_numbers_are_refused(seeds: int, scale: float) -> None:
    with pytest.raises(InputError):
        made().list_units(seeds, scale)


@pytest.mark.parametrize("name", ["", "../up", "A", "a b", "a/b"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="experiment"):
        made(name=name)


def test_a_table_s_rows_fit_its_head() -> None:
    text = Table(["a", "b"], [["1", "2"]], "Title").markdown()
    assert text.splitlines() == ["**Title**", "", "| a | b |", "|---|---|", "| 1 | 2 |"]
    with pytest.raises(InputError, match="3 cells under 2"):
        Table(["a", "b"], [["1", "2", "3"]])


def test_equal_units_have_one_key() -> None:
    assert unit_key({"a": 1, "b": [2]}) == unit_key({"b": [2], "a": 1})
    assert unit_key({"a": 1}) != unit_key({"a": 2})
    with pytest.raises(ValueError, match="JSON"):
        unit_key({"a": float("nan")})


def test_units_say_what_they_read() -> None:
    units = [{"data": "a"}, {"data": "b"}, {"data": "a"}]
    some = made(needs=("b", "a", "c"), reads=lambda unit: [unit["data"]])
    assert some.data_of(units) == ["a", "b"]
    assert some.data_of(units[:1]) == ["a"]
    assert made(needs=("b", "a")).data_of(units) == ["a", "b"]
    assert made(needs=("a",)).data_of([]) == []
