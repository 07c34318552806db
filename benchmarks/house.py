"""Count what a reader of the package has to hold in mind: `python benchmarks/house.py`.

Lines, files, public names, modules with one importer, private functions called from one place,
`Any`, comments and floors, as JSON on stdout. With --source FOLDER another checkout is counted.

- A public name is one in the `__all__` of the package or of a package in it.
- An importer is a module of the package; a package's `__init__` that only hands names on is none.
- A private function is a module's function or a method whose name opens with an underscore.
- A module stands one floor above the highest that it imports; what imports nothing stands on 1.
"""

import argparse
import ast
import io
import json
import tokenize
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parents[1] / "src" / "apiece"


def modules(source: Path) -> dict[str, tuple[str, ast.Module]]:
    """Return name ("plan.model", "plan" for its __init__) -> text and tree."""
    texts = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(source.rglob("*.py"))
    }
    return {name: (path.read_text(), ast.parse(path.read_text())) for name, path in texts.items()}


def imported(tree: ast.Module, names: set[str]) -> set[str]:
    """Return the modules of the package that a module imports, wherever the import stands."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name.removeprefix("apiece.") for a in node.names if "apiece." in a.name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "apiece":
            base = (node.module or "").removeprefix("apiece").removeprefix(".")
            inner = {a.name: f"{base}.{a.name}".removeprefix(".") for a in node.names}
            found |= {full if full in names else base for full in inner.values()}
    return found & names


def exported(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return {str(n.value) for n in ast.walk(node.value) if isinstance(n, ast.Constant)}
    return set()


def floors(arrows: dict[str, set[str]]) -> dict[str, int]:
    """Return each module's floor; a circle would never end, and a test forbids it."""
    height: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in height:
            height[name] = 1 + max((floor(to) for to in arrows[name]), default=0)
        return height[name]

    for name in arrows:
        floor(name)
    return height


def called_once(trees: dict[str, ast.Module]) -> tuple[int, int]:
    """Return how many private functions there are, and how many are named in one place only."""
    private: list[str] = []
    uses: Counter[str] = Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
                private += [node.name] if not node.name.startswith("__") else []
            elif isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
    return len(private), sum(uses[name] == 1 for name in private)


def count(source: Path) -> dict[str, object]:
    parsed = modules(source)
    trees = {name: tree for name, (_, tree) in parsed.items()}
    packages = {name for name in trees if (source / name.replace(".", "/")).is_dir()}
    faces = {name for name in packages | {"__init__"} if name in trees}
    arrows = {name: imported(tree, set(trees)) - {name} for name, tree in trees.items()}
    importers = Counter(to for name, to_ in arrows.items() if name not in faces for to in to_)
    comments = docstrings = annotations = 0
    for text, tree in parsed.values():
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        comments += sum(t.type == tokenize.COMMENT and "fmt:" not in t.string for t in tokens)
        annotations += sum(t.type == tokenize.NAME and t.string == "Any" for t in tokens)
        for node in ast.walk(tree):
            held = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if held and ast.get_docstring(node) is not None:
                docstrings += node.body[0].end_lineno - node.body[0].lineno + 1
    lines = sum(text.count("\n") for text, _ in parsed.values())
    blank = sum(not line.strip() for text, _ in parsed.values() for line in text.splitlines())
    private, once = called_once(trees)
    classes = Counter(
        node.name for t in trees.values() for node in ast.walk(t) if isinstance(node, ast.ClassDef)
    )
    names = set().union(*(exported(trees[face]) for face in faces))
    rooms: dict[str, list[int]] = {}
    for name, (text, _) in parsed.items():
        room = rooms.setdefault(name.split(".")[0], [0, 0])
        room[0], room[1] = room[0] + 1, room[1] + text.count("\n")
    return {
        "files": len(parsed),
        "lines": lines,
        "docstrings": docstrings,
        "blank": blank,
        "median_module": sorted(text.count("\n") for text, _ in parsed.values())[len(parsed) // 2],
        "public_names": len(names),
        "one_importer": sum(importers[name] == 1 for name in set(trees) - faces),
        "private_functions": private,
        "private_called_once": once,
        "any": annotations,
        "comments": comments,
        "comments_a_hundred_lines": round(100 * comments / (lines - docstrings - blank), 2),
        "classes_named_twice": sorted(name for name, times in classes.items() if times > 1),
        "floors": max(floors(arrows).values()),
        "rooms": {name: tuple(size) for name, size in sorted(rooms.items()) if size[0] > 1},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=HERE, help="the package's folder")
    print(json.dumps(count(parser.parse_args().source), indent=1))


if __name__ == "__main__":
    main()
