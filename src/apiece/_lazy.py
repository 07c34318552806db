"""Public names that are imported when they are first used, because what they need is slow."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names_of(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose modules are to be imported on first use.

    Args:
        package: Its name.
        modules: The public names of each of its modules.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def found(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    return found
