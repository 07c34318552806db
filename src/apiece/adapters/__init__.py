"""apiece beside other tools: scikit-learn's estimators (as `apiece.sklearn`), shadows on Ray.

What needs another tool is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

from apiece import _lazy

if TYPE_CHECKING:
    from apiece.adapters.ray import cluster
    from apiece.adapters.scikit.account import Account, Spending
    from apiece.adapters.scikit.classifier import PrivateClassifier
    from apiece.adapters.scikit.images import PrivateImageClassifier
    from apiece.adapters.scikit.regressor import PrivateRegressor

__all__ = [
    "Account",
    "PrivateClassifier",
    "PrivateImageClassifier",
    "PrivateRegressor",
    "Spending",
    "cluster",
]
__getattr__ = _lazy.names_of(
    __name__,
    {
        "ray": ("cluster",),
        "scikit.account": ("Account", "Spending"),
        "scikit.classifier": ("PrivateClassifier",),
        "scikit.images": ("PrivateImageClassifier",),
        "scikit.regressor": ("PrivateRegressor",),
    },
)
