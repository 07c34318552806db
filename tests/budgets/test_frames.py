"""Budgets from tables: pandas, CSV and Parquet."""

import pytest

from apiece.budgets import Budgets
from apiece.errors import BudgetError, DataError


def test_from_frame(tmp_path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"who": ["a", "b"], "eps": [1.0, 2.0], "d": [1e-5, 1e-6]})
    budgets = Budgets.from_frame(frame, epsilon="eps", delta="d", ids="who")
    assert budgets.ids.tolist() == ["a", "b"]
    assert budgets.delta.tolist() == [1e-5, 1e-6]
    for name in ("t.csv", "t.parquet"):
        path = tmp_path / name
        frame.to_csv(path, index=False) if name.endswith("csv") else frame.to_parquet(path)
        assert Budgets.from_frame(path, epsilon="eps", delta=1e-5).epsilon.tolist() == [1.0, 2.0]
    with pytest.raises(DataError, match="did you mean 'eps'"):
        Budgets.from_frame(frame, epsilon="epss", delta=1e-5)
    with pytest.raises(DataError, match="cannot be read"):
        Budgets.from_frame(tmp_path / "none.csv", epsilon="eps", delta=1e-5)
    with pytest.raises(DataError, match="no rows"):
        Budgets.from_frame(frame.iloc[:0], epsilon="eps", delta=1e-5)
    with pytest.raises(BudgetError, match=r"'eps', row 2 = '': empty"):
        Budgets.from_frame(frame.assign(eps=[1.0, None]), epsilon="eps", delta=1e-5)
