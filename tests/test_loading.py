"""Nothing that apiece reads can run code: every call that could is named here, with its reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "apiece"

# Names whose call loads objects or runs text, whatever they are an attribute of.
RUNS_CODE = {
    "eval", "exec", "compile", "__import__", "Unpickler", "read_pickle", "to_pickle", "unsafe_load",
    "full_load", "system", "popen", "import_module", "run_path", "run_module", "sympify",
    "parse_expr", "loads_pickle", "dill", "joblib", "shelve", "marshal", "from_pretrained",
    "run_string", "load_library", "load_url",
}  # fmt: skip
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "subprocess", "yaml"}
# Where one is meant: (file, what is called).
REASONS = {
    ("cli/__init__.py", "import_module"): "a command of this package, from the list of its files",
    ("__init__.py", "import_module"): "a public name's own module",
    ("_lazy.py", "import_module"): "a public name's own module",
    ("audit/stacked_training.py", "torch.export.load"): "behind trusted=True",
    ("queries/reading.py", "import subprocess"): "Python itself, with a fixed program, to tidy up",
    ("recipes/language.py", "from_pretrained"): "a file of a known digest, without code of its own",
    ("training/clipping/rewrite.py", "exec"): "code that torch writes of the graph that is proved",
    ("training/checkpoints.py", "import pickle"): "for the name of its error",
}


def dotted(node: ast.expr) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "…")
    return ".".join(reversed(parts))


def keyword(call: ast.Call, name: str) -> object:
    found = [k.value for k in call.keywords if k.arg == name]
    return found[0].value if found and isinstance(found[0], ast.Constant) else None


def suspicious(tree: ast.AST) -> Iterator[str]:
    """Yield what in a module could run code from data, by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names]
            module = getattr(node, "module", None)
            for name in [module] if module else names:
                if str(name).split(".")[0] in MODULES:
                    yield f"import {name}"
        if isinstance(node, ast.ClassDef):
            yield from (b.rsplit(".", 1)[-1] for b in map(dotted, node.bases) if "Unpickler" in b)
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        last = name.rsplit(".", 1)[-1]
        if (
            last in RUNS_CODE
            and name not in ("re.compile", "model.eval")
            and not (last in ("eval", "compile") and "." in name)
        ):
            yield last
        if (
            last == "load"
            and name.startswith("torch.")
            and keyword(node, "weights_only") is not True
        ):
            yield name
        numpy = last == "load" and name.startswith(("np.", "numpy."))
        if numpy and keyword(node, "allow_pickle") is not False:
            yield name
        if keyword(node, "allow_pickle") or keyword(node, "trust_remote_code"):
            yield f"{name} with leave"


def test_nothing_read_can_run_code() -> None:
    found = {
        (str(path.relative_to(SOURCE)), call)
        for path in SOURCE.rglob("*.py")
        for call in suspicious(ast.parse(path.read_text()))
    }
    assert found - REASONS.keys() == set(), "load data as data, or give the reason in REASONS"
    assert REASONS.keys() - found == set(), "a reason that is not needed any more"


@pytest.mark.parametrize(
    "text",
    [
        "torch.load(p)", "torch.load(p, weights_only=False)", "torch.load(p, weights_only=x)",
        "torch.export.load(p)", "torch.jit.load(p)", "torch.hub.load(p)", "np.load(p)",
        "numpy.load(p, allow_pickle=True)", "np.load(p, allow_pickle=flag)", "eval(text)",
        "exec(text)", "pickle.Unpickler(f)", "import pickle", "from pickle import loads",
        "import joblib", "pd.read_pickle(p)", "x(trust_remote_code=True)", "os.system(text)",
        "np.savez(p, allow_pickle=True)", "importlib.import_module(name)", "sympy.sympify(text)",
        "class A(pickle.Unpickler): pass", "import yaml",
    ],
)  # fmt: skip
def test_the_scan_sees(text: str) -> None:
    assert list(suspicious(ast.parse(text)))
