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

# The name of the standard library, beside those of packages.
PYTHON = "python"
# Installed libraries whose functions are not followed: their code is known to keep no state of a
# forward, or none that a forward reads.
_KNOWN = {
    "torch", "numpy", "transformers", "timm", "peft", "torchvision", "apiece", "accelerate",
    "scipy", "pandas", "sklearn", "einops", "sympy", "pytest", "_pytest", "hypothesis",
    "lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics", "datasets",
}  # fmt: skip
# Loaders of modules without a file.
_LOADERS_WITHOUT_FILES = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)
# Types of functions and methods in C.
_BUILTINS = (
    types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType,
)  # fmt: skip
# The flag (`__flags__`) of classes made while the program runs, as every class in Python is.
_HEAP_TYPE = 1 << 9


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
# Of the interpreter that runs; of a virtual environment it is the base's.
_STANDARD = _real([sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")])
# Where these three lie is known from what this process runs, however they were installed.
_FOLDERS = {
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
    # A link leads to where its code is: to a user's folder, perhaps.
    real = Path(path).resolve()
    for folder, name in _FOLDERS.items():
        if real.is_relative_to(folder):
            return name
    # before the standard library, in whose folder site-packages mostly lies
    for folder in _SITES:
        if real.is_relative_to(folder):
            # The folder or file right below site-packages names the package, less ".py" or ".so".
            return real.relative_to(folder).parts[0].partition(".")[0]
    for folder in _STANDARD:
        if real.is_relative_to(folder):
            parts = {*real.relative_to(folder).parts}
            # what is installed beside another interpreter of the same standard library
            return None if parts & {"site-packages", "dist-packages"} else PYTHON
    return None


def library_named(value: object) -> str | None:
    """Return the library that defines a module, a function or a class; None for a user's.

    A function goes by the file of its code, whatever its `__module__` says, and by the module whose
    globals it reads; a class by the module that has it under its name, or by its functions.
    """
    # By kind of value, what says where its code lies.
    if isinstance(value, types.ModuleType):
        return _library_of_module(value)
    if isinstance(value, types.FunctionType):
        return _library_of_function(value)
    if isinstance(value, functools._lru_cache_wrapper):
        return library_named(value.__wrapped__)
    if isinstance(value, type):
        return _library_of_class(value)
    if isinstance(value, _BUILTINS) or type(value).__module__.startswith("_cython_"):
        # a method goes by its class, a function in C by its module
        home = getattr(value, "__objclass__", None) or _home_of(value)
        return None if home is None else library_named(home)
    return _library_of_class(type(value))


def is_of_a_library(value: object) -> bool:
    """Return whether a module, function or class is Python's own or of a library that is known."""
    name = library_named(value)
    return name == PYTHON or name in _KNOWN


def _home_of(value: object) -> types.ModuleType | None:
    """Return the module that a function in C says it belongs to."""
    name = getattr(value, "__module__", None)
    return sys.modules.get(name if isinstance(name, str) else "builtins")


def _library_of_module(module: types.ModuleType) -> str | None:
    """Return the library of a module that `import` has put where it stands; None for others.

    What a module says of itself (`__name__`, `__file__`, `__spec__`) can be written by anybody: it
    counts only where all of it, and `sys.modules`, say the same.
    """
    attributes = vars(module)
    if type(module) is not types.ModuleType:  # a library's namespace or lazy module
        return _library_of_class(type(module))
    name = attributes.get("__name__")
    if not isinstance(name, str) or sys.modules.get(name) is not module:
        return None
    spec = attributes.get("__spec__")
    file = attributes.get("__file__")
    origin = getattr(spec, "origin", None)
    # Without a file: built in, frozen, or part of a module in C.
    if file is None:
        if getattr(spec, "loader", None) in _LOADERS_WITHOUT_FILES:
            is_built_in = name in sys.builtin_module_names or origin == "frozen"
            return PYTHON if is_built_in else None
        return _library_of_part(module, name) if spec is None else None
    if spec is None or not isinstance(file, str):
        return None
    # The loader's file and the module's own must be one.
    if origin != "frozen" and origin != file:  # one of the two was written afterwards
        return None
    library = library_of(file)
    package = name.partition(".")[0]
    # A file of one package does not make a module of another name this package.
    is_its_own = package in sys.stdlib_module_names if library == PYTHON else library == package
    return library if is_its_own else None


def _library_of_part(module: types.ModuleType, name: str) -> str | None:
    """Return the library of a part of a module in C, which has neither file nor spec."""
    outer_name, _, attribute = name.rpartition(".")
    outer = sys.modules.get(outer_name)
    if outer is None or vars(outer).get(attribute) is not module:
        return None
    return _library_of_module(outer)


def _library_of_function(function: types.FunctionType) -> str | None:
    """Return the library that both a function's file and the module of its globals belong to."""
    # A function made by hand may have a library's code and a user's globals, or the reverse.
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    # A function reads globals of its module: if those are not the module's own dict, it is a
    # user's.
    if module is None or vars(module) is not function.__globals__:
        return None
    path = function.__code__.co_filename
    if path.startswith("<"):  # frozen, or made from text by its own module
        return _library_of_module(module)
    library = library_of(path)
    if library is None or _library_of_module(module) != library:
        return None
    return library


# By class, its library, or "" for a user's: a class is looked at once.
_library_by_class: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def _library_of_class(kind: type) -> str | None:
    """Return the library of a class, from memory where it was looked at before."""
    library = _library_by_class.get(kind)
    if library is None:
        # A module that has put an instance of its own class in its place leads back to the class,
        # which is then a user's.
        _library_by_class[kind] = ""
        library = _look_at_class(kind) or ""
        _library_by_class[kind] = library
    return library or None


def _look_at_class(kind: type) -> str | None:
    """Return the library of the module that has a class under its name, or of its functions."""
    home = kind.__module__
    module = sys.modules.get(str(home))
    if not kind.__flags__ & _HEAP_TYPE:  # in C, for as long as the process runs
        return None if module is None else _library_of_module(module) or PYTHON
    library = None if module is None else _library_of_module(module)
    if module is None or library is None:
        return None
    named: object = module  # step by step through the classes that hold it
    # Found under its own qualified name, the class is the one that the module defines.
    for name in kind.__qualname__.split("."):
        named = getattr(named, "__dict__", {}).get(name)
    if named is kind and not _has_foreign_functions(module, library):
        return library
    # a class within a function, or one that its module has given away
    functions = [value for value in vars(kind).values() if isinstance(value, types.FunctionType)]
    of_library = functions and all(_library_of_function(f) == library for f in functions)
    return library if of_library else None


def _has_foreign_functions(module: types.ModuleType, library: str) -> bool:
    """Return whether functions were put into a module that come from no file of its library."""
    attributes = vars(module)
    # Only functions whose globals are the module's: others were imported, and are looked at
    # themselves.
    paths = {
        value.__code__.co_filename
        for value in attributes.values()
        if isinstance(value, types.FunctionType) and value.__globals__ is attributes
    }
    return any(library_of(path) != library for path in paths if not path.startswith("<"))
