"""apiece beside other tools: scikit-learn's estimators (as `apiece.sklearn`), shadows on Ray.

What needs another tool is loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
]
_MODULE_OF = {
    "Account": "account",
    "PrivateClassifier": "classifier",
    "PrivateImageClassifier": "images",
    "PrivateRegressor": "regressor",
    "Spending": "account",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'apiece.adapters' has no attribute {name!r}")
    return getattr(importlib.import_module(f"apiece.adapters.scikit.{_MODULE_OF[name]}"), name)
