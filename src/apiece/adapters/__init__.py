"""apiece beside other tools: scikit-learn's estimators (as `apiece.sklearn`), shadows on Ray.

What needs another tool is loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
_MODULE_OF = {
    "Account": "scikit.account",
    "PrivateClassifier": "scikit.classifier",
    "PrivateImageClassifier": "scikit.images",
    "PrivateRegressor": "scikit.regressor",
    "Spending": "scikit.account",
    "cluster": "ray",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'apiece.adapters' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
