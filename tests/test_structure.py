"""The house stays readable: no circles, no deep imports across packages, every name is there."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "apiece"

# Exceptions, each to be mended: this list may only become shorter.
CIRCLES: list[set[str]] = []


def named(path: Path, root: Path = SOURCE) -> str:
    """Return a module's name without "apiece.": "plan.model", and "plan" for its __init__."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def parsed(root: Path = SOURCE) -> dict[str, ast.Module]:
    return {named(path, root): ast.parse(path.read_text()) for path in sorted(root.rglob("*.py"))}


def imported(tree: ast.AST, modules: set[str]) -> Iterator[tuple[str, str | None]]:
    """Yield (module, name) of every import of the library, wherever in the file it stands.

    A module that is imported itself has no name; `from apiece import x` gives x.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("apiece."):
                    yield alias.name.removeprefix("apiece."), None
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("apiece"):
            base = (node.module or "").removeprefix("apiece").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                yield (inner, None) if inner in modules else (base or "__init__", alias.name)


def circles(trees: dict[str, ast.Module]) -> list[set[str]]:
    """Return the sets of modules that import one another, directly or through others."""
    arrows = {name: {to for to, _ in imported(tree, set(trees))} for name, tree in trees.items()}

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for to in arrows.get(waiting.pop(), set()) - seen:
                seen.add(to)
                waiting.append(to)
        return seen

    reach = {name: reached(name) for name in trees}
    found = {frozenset(n for n in reach[name] if name in reach[n]) for name in trees}
    return sorted((set(group) for group in found if group), key=sorted)


def public(tree: ast.Module) -> set[str]:
    """Return the names in a module's `__all__`."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            return {str(name) for name in ast.literal_eval(node.value)}  # type: ignore[attr-defined]
    return set()


def given(tree: ast.Module) -> set[str]:
    """Return the names that a module defines itself and that are not private."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def bypasses(trees: dict[str, ast.Module]) -> set[str]:
    """Return "importer > module.name" of what reaches into what another package keeps to itself.

    A package gives users what its `__all__` lists; to the other packages its modules give any name
    that is not private, and nobody takes a whole module.
    """
    found = set()
    for name, tree in trees.items():
        for module, wanted in imported(tree, set(trees)):
            package = module.split(".")[0]
            if package == name.split(".")[0]:
                continue
            if any(other.startswith(f"{package}.") for other in trees):
                # `from apiece.one import a` gives what the package calls so, before its module a
                own = wanted or module.removeprefix(package).removeprefix(".")
                there = module == package or wanted is None
                fine = there and (not own or own in public(trees[package]))
                fine |= module != package and wanted in given(trees[module])
            else:
                fine = wanted in (None, "__version__") or not str(wanted).startswith("_")
            if not fine:
                found.add(f"{name} > {module}" + (f".{wanted}" if wanted else ""))
    return found


@cache
def source_trees() -> dict[str, ast.Module]:
    """The modules of apiece, parsed when a test first asks."""
    return parsed()


def house(folder: Path, files: dict[str, str]) -> dict[str, ast.Module]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return parsed(folder)


def test_no_circle_of_imports() -> None:
    assert circles(source_trees()) == CIRCLES, (
        "modules import one another; mended ones leave the list"
    )


@pytest.mark.parametrize(
    "back",
    [
        "from apiece.one.a import f",
        "def g():\n    from apiece.one.a import f",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from apiece.one import a",
        "import apiece.one.a",
    ],
)
def test_a_circle_is_found_however_it_is_closed(tmp_path: Path, back: str) -> None:
    there = {"one/__init__.py": "", "one/a.py": "from apiece.one.b import h", "one/b.py": "h = 1"}
    assert circles(house(tmp_path, there)) == []
    closed = {**there, "one/b.py": "from apiece.one.c import k", "one/c.py": back}
    assert circles(house(tmp_path, closed)) == [{"one.a", "one.b", "one.c"}]


A_MODULE = "from os import path\n\ndef k(): ...\n\ndef _f(): ...\n"


def test_no_import_past_all() -> None:
    found = bypasses(source_trees())
    assert not found, "import what its package lists, or what its module defines for others"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from apiece.one import f", set()),
        ("from apiece._top import f", set()),
        ("from apiece import one, _top", set()),
        ("from apiece.one import g", {"two > one.g"}),
        ("from apiece.one import _f", {"two > one._f"}),
        ("from apiece.one import a", {"two > one.a"}),
        ("import apiece.one", set()),
        ("def h():\n    from apiece.one.a import k", set()),
        ("def h():\n    from apiece.one.a import _f", {"two > one.a._f"}),
        ("from apiece.one.a import path", {"two > one.a.path"}),
        ("from apiece._top import _f", {"two > _top._f"}),
    ],
)
def test_an_import_past_all_is_found(tmp_path: Path, text: str, found: set[str]) -> None:
    files = {"one/__init__.py": '__all__ = ["f"]\n', "one/a.py": A_MODULE, "_top.py": ""}
    assert bypasses(house(tmp_path, {**files, "two.py": text})) == found


def missing_names(folder: Path, trees: dict[str, ast.Module]) -> set[str]:
    """Return "file > module.name" of what files outside the package import and it does not have."""
    missing = set()
    for path in sorted(folder.rglob("*.py")):
        for module, name in imported(ast.parse(path.read_text()), set(trees)):
            tree = trees.get(module)
            bound = {
                alias.asname or alias.name
                for node in (ast.walk(tree) if tree else ())
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            lazily = {
                n.value for n in ast.walk(tree or ast.Module([])) if isinstance(n, ast.Constant)
            }
            known = tree and (name is None or name in given(tree) | bound | lazily)
            if not known:
                missing.add(f"{path.name} > {module}.{name}")
    return missing


@pytest.mark.parametrize("folder", ["research", "examples"])
def test_what_is_imported_outside_the_package_is_there(folder: str) -> None:
    assert not missing_names(SOURCE.parents[1] / folder, source_trees())


def test_a_name_that_moved_is_missed(tmp_path: Path) -> None:
    trees = house(tmp_path / "in", {"one/__init__.py": "", "one/a.py": A_MODULE})
    (tmp_path / "out").mkdir()
    text = "from apiece.one.a import k, path, gone\nfrom apiece.one.b import x\nimport apiece.two\n"
    (tmp_path / "out" / "uses.py").write_text(text)
    missing = missing_names(tmp_path / "out", trees)
    assert missing == {"uses.py > one.a.gone", "uses.py > one.b.x", "uses.py > two.None"}


# ---------------------------------------------------------------- private names of torch

# The one module that may use them, and says what each is for.
INTERNALS = "training.clipping.torch_internals"
# Attributes of torch's objects that begin with an underscore.
PRIVATE_ATTRIBUTES = {
    "_parameters", "_buffers", "_modules", "_schema", "_overloadname", "_qualified_op_name", "_op",
    "_version", "_backward_hooks", "_post_accumulate_grad_hooks", "_c", "_concrete_type",
}  # fmt: skip
# Modules of torch's own, though their names do not begin with one.
PRIVATE_MODULES = ("torch.fx.experimental", "torch.fx.traceback", "torch.nn.utils.stateless")


def is_private(name: str) -> bool:
    """Return whether a dotted name of torch's is one that another version may have changed."""
    parts = name.split(".")
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return parts[0] == "torch" and (hidden or name.startswith(PRIVATE_MODULES))


def private_names_of_torch(tree: ast.Module) -> set[str]:
    """Return the private names of torch that a module imports or reads as an attribute."""
    roots: dict[str, str] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.add(alias.name)
                roots[alias.asname or alias.name.partition(".")[0]] = alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names.add(f"{node.module}.{alias.name}")
                roots[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    found = {name for name in names if is_private(name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            name = f"{roots.get(root, '')}.{rest}"
            own = root == "self" and "." not in rest
            if is_private(name) or (node.attr in PRIVATE_ATTRIBUTES and not own):
                found.add(name if is_private(name) else node.attr)
    return found


def test_private_names_of_torch_stand_in_one_module() -> None:
    found = {name: private_names_of_torch(tree) for name, tree in source_trees().items()}
    assert found.pop(INTERNALS), "it has them"
    assert {name: names for name, names in found.items() if names} == {}, f"{INTERNALS} has such"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import torch\ntorch.__version__", set()),
        ("from torch import nn\nnn.Linear(2, 1)", set()),
        ("class A:\n    def f(self): self._buffers = 1", set()),
        ("import torch\ntorch._C.f()", {"torch._C", "torch._C.f"}),
        ("import torch._dynamo", {"torch._dynamo"}),
        ("from torch.utils import _pytree as t", {"torch.utils._pytree"}),
        ("def f():\n    from torch.fx.experimental.proxy_tensor import make_fx",
         {"torch.fx.experimental.proxy_tensor.make_fx"}),
        ("from torch import nn\nnn.modules.x._Y", {"torch.nn.modules.x._Y"}),
        ("def f(module): return module._parameters", {"_parameters"}),
        ("class A:\n    def f(self): self.model._buffers", {"_buffers"}),
    ],
)  # fmt: skip
def test_a_private_name_of_torch_is_found(text: str, names: set[str]) -> None:
    assert private_names_of_torch(ast.parse(text)) == names
