"""Private estimators for scikit-learn: each record at its own (ε, δ); needs the `sklearn` extra.

    from apiece.sklearn import Numeric, PrivateClassifier

    model = PrivateClassifier(classes=["no", "yes"], columns=Numeric(0, 10))
    model.fit(X, y, epsilon=consent, people=ids)

Nothing is learned from rows but by the private training: classes, ranges and categories are
declared. `Account` says what several fits, such as those of a cross-validation, spend together.
"""

# Imports stand behind the check that what they need is installed.
# ruff: noqa: E402

from apiece._lazy import require

require("sklearn", "sklearn", "torch", "cryptography", "pandas", "pyarrow")

from apiece.adapters.account import Account, Spending
from apiece.adapters.estimators import PrivateClassifier, PrivateImageClassifier, PrivateRegressor
from apiece.datasets import Categorical, Date, Numeric, Schema, Skip

__all__ = [
    "PrivateClassifier", "PrivateRegressor", "PrivateImageClassifier", "Account", "Spending",
    "Schema", "Numeric", "Categorical", "Date", "Skip",
]  # fmt: skip
