"""apiece beside other tools: scikit-learn's estimators (as `apiece.sklearn`), shadows on Ray.

What needs another tool is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

from apiece import _lazy

if TYPE_CHECKING:
    from apiece.adapters.ray import cluster

__all__ = ["cluster"]
__getattr__ = _lazy.names_of(
    __name__,
    {
        "ray": ("cluster",),
    },
)
