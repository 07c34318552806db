"""Public names that are imported when they are first used, and the extras that bring modules."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from apiece.errors import UnsupportedError

_EXTRAS = {
    "train": ("torch", "cryptography", "PIL"),
    "ledger": ("sqlalchemy", "psycopg"),
    "queries": ("duckdb",),
    "sensitivity": ("sympy", "mpmath"),
    "sklearn": ("sklearn",),
    "pdf": ("fpdf",),
    "huggingface": ("transformers",),
    "lightning": ("lightning",),
    "flower": ("flwr",),
}
_EXTRA_OF = {module: extra for extra, modules in _EXTRAS.items() for module in modules}
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "fpdf": "fpdf2", "flwr": "flower"}


def lacking(module: str | None) -> ModuleNotFoundError:
    """Return the error that names the extra with a module which is not installed."""
    name = (module or "").partition(".")[0]
    extra = _EXTRA_OF.get(name, "all")
    return ModuleNotFoundError(
        f"{_DISTRIBUTIONS.get(name, name)} is not installed; pip install 'apiece[{extra}]'",
        name=module,
    )


def optional(extra: str) -> Any:
    """Return the module of an extra of its name; raise `UnsupportedError` where it is missing."""
    try:
        return importlib.import_module(extra)
    except ImportError:
        raise UnsupportedError(f"{extra} is not installed; pip install 'apiece[{extra}]'") from None


def names_of(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose modules are to be imported on first use.

    Args:
        package: Its name.
        modules: The public names of each of its modules.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def value_of(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(package.partition(".")[0]):
                raise
            raise lacking(error.name) from None

    return value_of
