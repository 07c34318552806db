"""Private estimators for scikit-learn: each record at its own (ε, δ); needs the `sklearn` extra.

    from apiece.sklearn import Numeric, PrivateClassifier

    model = PrivateClassifier(classes=["no", "yes"], columns=Numeric(0, 10))
    model.fit(X, y, epsilon=consent, people=ids)

Nothing is learned from rows but by the private training: classes, ranges and categories are
declared. `Account` says what several fits, such as those of a cross-validation, spend together.
"""

from apiece._lazy import lacking

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise lacking(error.name) from None

from apiece.adapters.account import Account, Spending
from apiece.adapters.estimators import PrivateClassifier, PrivateImageClassifier, PrivateRegressor
from apiece.datasets import Categorical, Date, Numeric, Schema, Skip

__all__ = [
    "PrivateClassifier", "PrivateRegressor", "PrivateImageClassifier", "Account", "Spending",
    "Schema", "Numeric", "Categorical", "Date", "Skip",
]  # fmt: skip
