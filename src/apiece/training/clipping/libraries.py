"""Which code is a library's: decided by where its file lies, not by what it is called.

A package of a user's own named `datasets`, `types` or `queue` is the user's code: a library is what
lies in the interpreter's standard library or in one of its site-packages. What is installed in
place (an editable install), a link that leads out of there, a zip file and a module that was made
by hand count as the user's; that costs a walk through their code and no guarantee.
"""

from __future__ import annotations

import functools
import importlib.machinery
import site
import sys
import sysconfig
import types
import weakref
from pathlib import Path

import numpy as np
import torch

PYTHON = "python"
# Installed libraries whose functions are not followed: their code is known to keep no state of a
# forward, or none that a forward reads.
_KNOWN = {
    "torch", "numpy", "transformers", "timm", "peft", "torchvision", "apiece", "accelerate",
    "scipy", "pandas", "sklearn", "einops", "sympy", "pytest", "_pytest", "hypothesis",
    "lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics", "datasets",
}  # fmt: skip
_MADE_BY_IMPORT = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)
_BUILTINS = (
    types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType,
)  # fmt: skip
_HEAP_TYPE = 1 << 9  # of a class's flags: made while the program runs, as every class in Python


def _real(paths: list[str | None]) -> tuple[Path, ...]:
    """Return the real paths of folders, the deepest first."""
    real = {Path(path).resolve() for path in paths if path}
    return tuple(sorted(real, key=lambda folder: len(folder.parts), reverse=True))


def _site_packages() -> tuple[Path, ...]:
    """Return the folders of installed packages, those of the user and of the base included."""
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    names = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), user]
    return _real([*names, *site.getsitepackages()])


_SITES = _site_packages()
_STANDARD = _real([sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")])
# Where these three lie is known from what this process runs, however they were installed.
_OWN = {
    Path(folder).resolve(): name
    for name, folders in (
        ("torch", torch.__path__),
        ("numpy", np.__path__),
        ("apiece", [str(Path(__file__).parents[2])]),
    )
    for folder in folders
}


@functools.lru_cache(1 << 14)
def library_of(path: str) -> str | None:
    """Return the library that a file belongs to, None for a user's file.

    Args:
        path: Of a file of code; a relative one counts from the working folder.

    Returns:
        `PYTHON`, or the name of the package in site-packages.
    """
    real = Path(path).resolve()
    for folder, name in _OWN.items():
        if real.is_relative_to(folder):
            return name
    for folder in _SITES:
        if real.is_relative_to(folder):
            return real.relative_to(folder).parts[0].partition(".")[0]
    for folder in _STANDARD:
        if real.is_relative_to(folder):
            inside = {*real.relative_to(folder).parts}
            return None if inside & {"site-packages", "dist-packages"} else PYTHON
    return None


def library_named(value: object) -> str | None:
    """Return the library that defines a module, a function or a class; None for a user's.

    A function goes by the file of its code, whatever its `__module__` says, and by the module whose
    globals it reads; a class by the module that has it under its name, or by its functions.
    """
    if isinstance(value, types.ModuleType):
        return _of_module(value)
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if isinstance(value, functools._lru_cache_wrapper):
        return library_named(value.__wrapped__)
    if isinstance(value, type):
        return _of_class(value)
    if isinstance(value, _BUILTINS) or type(value).__module__.startswith("_cython_"):
        home = getattr(value, "__objclass__", None) or _home_of(value)
        return None if home is None else library_named(home)
    return _of_class(type(value))


def is_of_a_library(value: object) -> bool:
    """Return whether a module, function or class is Python's own or of a library that is known."""
    name = library_named(value)
    return name == PYTHON or name in _KNOWN


def _home_of(value: object) -> types.ModuleType | None:
    name = getattr(value, "__module__", None)
    return sys.modules.get(name if isinstance(name, str) else "builtins")


def _of_module(module: types.ModuleType) -> str | None:
    held = vars(module)
    if type(module) is not types.ModuleType:  # a library's namespace or lazy module
        return _of_class(type(module))
    name, spec = held.get("__name__"), held.get("__spec__")
    if not isinstance(name, str) or sys.modules.get(name) is not module:
        return None
    file, origin = held.get("__file__"), getattr(spec, "origin", None)
    if file is None and getattr(spec, "loader", None) in _MADE_BY_IMPORT:
        return PYTHON if name in sys.builtin_module_names or origin == "frozen" else None
    if file is None:  # a part of a module in C
        parent, _, own = name.rpartition(".")
        outer = sys.modules.get(parent)
        is_part = outer is not None and vars(outer).get(own) is module
        return _of_module(outer) if is_part and spec is None and outer is not None else None
    if spec is None or not isinstance(file, str):
        return None
    if origin != "frozen" and origin != file:
        return None
    library, top = library_of(file), name.partition(".")[0]
    # A file of one package does not make a module of another name this package.
    is_its_own = top in sys.stdlib_module_names if library == PYTHON else library == top
    return library if is_its_own else None


def _of_function(function: types.FunctionType) -> str | None:
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    if module is None or vars(module) is not function.__globals__:
        return None
    path = function.__code__.co_filename
    if path.startswith("<"):  # frozen, or made from text by its own module
        return _of_module(module)
    library = library_of(path)
    return library if library is not None and _of_module(module) == library else None


_classes: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def _of_class(owner: type) -> str | None:
    known = _classes.get(owner)
    if known is None:
        known = _classes[owner] = _look_at_class(owner) or ""
    return known or None


def _look_at_class(owner: type) -> str | None:
    home = owner.__module__
    module = sys.modules.get(str(home))
    if not owner.__flags__ & _HEAP_TYPE:  # in C, for as long as the process runs
        return None if module is None else _of_module(module) or PYTHON
    library = None if module is None else _of_module(module)
    if module is None or library is None:
        return None
    found: object = module
    for name in owner.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    if found is owner and not _holds_other_code(module, library):
        return library
    functions = [held for held in vars(owner).values() if isinstance(held, types.FunctionType)]
    of_library = functions and all(_of_function(held) == library for held in functions)
    return library if of_library else None


def _holds_other_code(module: types.ModuleType, library: str) -> bool:
    """Return whether functions were put into a module that come from no file of its library."""
    held = vars(module)
    own = (one for one in held.values() if isinstance(one, types.FunctionType))
    paths = {one.__code__.co_filename for one in own if one.__globals__ is held}
    return any(library_of(path) != library for path in paths if not path.startswith("<"))
