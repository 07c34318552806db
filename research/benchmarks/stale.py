"""Stored results whose code has changed since they were made, and how to confirm or renew them.

    python -m research.benchmarks.stale                            # make stale: exit 1 if any is
    python -m research.benchmarks.stale record research/results/search.json    # it was made anew
    python -m research.benchmarks.stale confirm research/results/recipes.json
    python -m research.benchmarks.stale carry BEFORE/src RESULT...     # a change of form alone,
                                        # but for values by name: --leave-out 'lstm proved'

stored.toml beside this file names, for each result, its command and the code that decides its
figures; stored.json holds what that code was. A change of comments, docstrings, annotations or the
text of an error is no change. `confirm` runs the quickest units of an experiment again, whose
seeds are fixed: where every figure is the stored one, to a share of `TOLERANCE`, the result stands,
and the record says which units were repeated. Times cannot be confirmed, only measured anew.
`carry` is for a change of form alone, as of names: where the result was fresh with the code of an
earlier checkout, only files of the package differ since, and both trees compute the same to the bit
(equality.py), the record follows, and names the commit that it was carried from.

A result that needs hours or hardware may be left as it is: `measured` in stored.toml is the commit
whose code made it, `until` what a new measurement needs. It is listed apart, and each page that
quotes it says so in the words of `Result.sentence`.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import json
import math
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "research" / "benchmarks" / "stored.toml"
RECORDS = ROOT / "research" / "benchmarks" / "stored.json"

# Relative difference of two figures that are the same: other processors add in another order.
TOLERANCE = 1e-6

# Endings of files that decide a figure.
CODE = (".py", ".json", ".toml")

# Keys of a result that hold seconds, which no repetition gives again.
TIMES = ("second", "time", "clock")


class _Normalise(ast.NodeTransformer):
    """Drops what cannot change a figure: docstrings, annotations, texts of errors."""

    def _drop_docstring(self, node: Any) -> Any:
        self.generic_visit(node)
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = node.body[1:] or [ast.Pass()]
        return node

    def visit_Module(self, node: ast.Module) -> Any:
        return self._drop_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return self._drop_docstring(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = None
        return self._drop_docstring(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        node.returns = None
        return self._drop_docstring(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                inner.value = ""
        return node


def _short_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def fingerprint(text: str, suffix: str) -> str:
    """Digest of a file's text, of Python without what cannot change a figure."""
    if suffix == ".py":
        text = ast.dump(_Normalise().visit(ast.parse(text)))
    return _short_digest(text.encode())


@dataclass(frozen=True)
class Result:
    """A stored result of older or of present code.

    Attributes:
        path: In the repository.
        command: What makes it.
        code: Files and folders that decide its figures.
        repeat: Units that a confirmation runs.
        measured: The commit whose older code made it, or None.
        until: What a new measurement needs, or None.
    """

    path: str
    command: str
    code: tuple[str, ...]
    repeat: int
    measured: str | None = None
    until: str | None = None

    def sentence(self, date: str) -> str:
        """What each page that quotes a result of older code says; the date is its record's."""
        return (
            f"`{Path(self.path).name}` was measured on or before {date} with the code up to "
            f"`{self.measured}`, and not again since: that needs {self.until}."
        )

    def pages(self) -> list[Path]:
        """Pages that quote the result: by its file's name, or by the command of its experiment."""
        names = [Path(self.path).name]
        if self.command.startswith("python -m research "):
            names.append(self.command)
        texts = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        return [page for page in texts if quotes(page.read_text(encoding="utf-8"), names)]

    def fingerprints(self, root: Path | None = None) -> dict[str, str]:
        """Digest of each file or folder of the code, in another checkout if one is named."""
        top = ROOT if root is None else root
        return {name: self._digest_of_code(top / name, top) for name in self.code}

    def _digest_of_code(self, path: Path, root: Path) -> str:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        lines = [
            f"{file.relative_to(root)} {fingerprint(file.read_text(encoding='utf-8'), file.suffix)}"
            for file in files
            if file.suffix in CODE
        ]
        return _short_digest("\n".join(lines).encode())


def quotes(text: str, names: Sequence[str]) -> bool:
    """Whether a page has one of the names, whole, on one line or on two."""
    text = " ".join(text.split())
    return any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for name in names)


def expand(names: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Paths of files and folders behind names, groups of groups resolved."""
    paths: list[str] = []
    for name in names:
        paths += expand(groups[name], groups) if name in groups else [name]
    return sorted(set(paths))


def read_manifest(path: Path = MANIFEST) -> dict[str, Result]:
    """Results by path, as the manifest declares them."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: Result(
            name,
            entry["command"],
            tuple(expand(entry["code"], content["groups"])),
            entry.get("repeat", 0),
            entry.get("measured"),
            entry.get("until"),
        )
        for name, entry in content["results"].items()
    }


def digest_of(path: Path) -> str:
    """Digest of a result's bytes."""
    return _short_digest(path.read_bytes())


def reasons(result: Result, record: Mapping[str, Any] | None) -> list[str]:
    """Why a result is stale; nothing where it stands.

    Args:
        result: Of the manifest.
        record: What was noted when it was stored; None where nothing was.
    """
    if record is None:
        return ["nothing is recorded of what made it"]
    if record["result"] != digest_of(ROOT / result.path):
        return ["the file is not the one that was recorded"]
    now = result.fingerprints()
    then = record["code"]
    changed = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    if result.measured:
        if not changed:
            return ["its code is as recorded: take `measured` and `until` out"]
        return unsaid(result, record["date"])
    if not changed:
        return []
    listed = ", ".join(changed[:3])
    if len(changed) > 3:
        listed += f" and {len(changed) - 3} more"
    return [f"changed since: {listed}"]


def unsaid(result: Result, date: str) -> list[str]:
    """What is missing of a result of older code: a reason, a page, or the sentence on a page."""
    if not result.until:
        return ["`until` has to say what a new measurement needs"]
    pages = result.pages()
    if not pages:
        return ["no page quotes it: take it down"]
    sentence = result.sentence(date)
    return [
        f"{page.relative_to(ROOT)} has to say: {sentence}"
        for page in pages
        if sentence not in " ".join(page.read_text(encoding="utf-8").split())
    ]


def numbers_differ(stored: object, repeated: object, where: str = "") -> str | None:
    """The first place where two results differ by more than the tolerance; None where none does."""
    if isinstance(stored, Mapping) and isinstance(repeated, Mapping):
        if stored.keys() != repeated.keys():
            return f"{where}: other keys"
        for name in stored:
            if any(word in name for word in TIMES):
                continue
            place = numbers_differ(stored[name], repeated[name], f"{where}/{name}")
            if place is not None:
                return place
        return None
    if isinstance(stored, list) and isinstance(repeated, list):
        if len(stored) != len(repeated):
            return f"{where}: {len(stored)} entries stored, {len(repeated)} now"
        for position, (old, new) in enumerate(zip(stored, repeated, strict=True)):
            place = numbers_differ(old, new, f"{where}/{position}")
            if place is not None:
                return place
        return None
    if isinstance(stored, float) and isinstance(repeated, int | float):
        same = math.isclose(stored, repeated, rel_tol=TOLERANCE, abs_tol=1e-12)
        same |= math.isnan(stored) and math.isnan(repeated)
        return None if same else f"{where}: {stored} stored, {repeated} now"
    return None if stored == repeated else f"{where}: {stored} stored, {repeated} now"


def repeat_units(result: Result) -> tuple[list[Any], str | None]:
    """Run an experiment's quickest units again.

    Returns:
        The units, and the first difference from what is stored; None where there is none.
    """
    sys.path.insert(0, str(ROOT))  # where this file is started by its path
    from research import EXPERIMENTS, RESULTS
    from research.data import find_data
    from research.experiment import Folders
    from research.registry import load_experiment
    from research.store import Store

    name = Path(result.path).stem
    experiment = load_experiment(EXPERIMENTS, name)
    stored = Store(RESULTS).load(name)
    quickest = sorted(stored, key=lambda done: (done.seconds is None, done.seconds or 0.0))
    chosen = quickest[: result.repeat]
    data = find_data()
    with tempfile.TemporaryDirectory() as folder:
        for done in chosen:
            repeated = json.loads(
                json.dumps(experiment.run(done.unit, Folders(data, Path(folder))))
            )
            difference = numbers_differ(done.result, repeated)
            if difference is not None:
                return [one.unit for one in chosen], f"{json.dumps(done.unit)}{difference}"
    return [one.unit for one in chosen], None


def read_records() -> dict[str, Any]:
    """What is recorded of each result, by its path."""
    records: dict[str, Any] = json.loads(RECORDS.read_text(encoding="utf-8"))
    return records


def why_not_carried(result: Result, root: Path) -> str | None:
    """Why a result cannot follow from an earlier checkout by equality; None where it can."""
    record = read_records().get(result.path)
    if record is None or record["result"] != digest_of(ROOT / result.path):
        return "nothing is recorded of what made this file"
    before = result.fingerprints(root)
    if before != record["code"]:
        return f"it was stale with the code of {root} too"
    now = result.fingerprints()
    others = [name for name in now if now[name] != before[name] and not name.startswith("src/")]
    if others:
        return f"{others[0]} has changed, which equality of the package says nothing of"
    return None


def carry(results: Sequence[Result], source: Path, left_out: Sequence[str] = ()) -> int:
    """Let records follow from an earlier checkout, if all rooms compute the same to the bit.

    Values whose names begin with one of `left_out` may differ; the records name them.
    """
    root = source.resolve().parent
    refused = {result.path: why_not_carried(result, root) for result in results}
    for path, reason in refused.items():
        if reason is not None:
            print(f"{path}: not carried: {reason}")
    chosen = [result for result in results if refused[result.path] is None]
    if not chosen:
        return 1
    git = ["git", "-C", str(root)]
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", "src"], capture_output=True, text=True, check=True
    )
    if changed.stdout:
        print(f"{source}: differs from its commit; commit or undo the changes")
        return 1
    head = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    equality = ROOT / "research" / "benchmarks" / "equality.py"
    # The text of an error is no figure.
    program = [sys.executable, str(equality), "--classes-of-errors"]
    trees = [str(source), str(ROOT / "src")]
    exceptions = ["--leave-out", *left_out] if left_out else []
    if subprocess.run([*program, *trees, *exceptions], check=False).returncode:
        print("not carried: the two trees compute different values")
        return 1
    for result in chosen:
        words = [head.stdout.strip(), *(f"but for {name}" for name in left_out)]
        write_record(result, carried=", ".join(words))
        print(f"{result.path}: carried")
    return 0 if len(chosen) == len(results) else 1


def write_record(result: Result, confirmed: Sequence[Any] = (), carried: str = "") -> None:
    """Note the code as it is now as what made a result.

    Args:
        result: Of the manifest.
        confirmed: Units that were repeated and gave the stored figures.
        carried: Commit of the checkout with whose code the package computes the same to the bit.
    """
    records = read_records()
    entry = {
        "result": digest_of(ROOT / result.path),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "code": result.fingerprints(),
    }
    if confirmed:
        entry["repeated"] = list(confirmed)
    if carried:
        entry["carried"] = carried
    records[result.path] = entry
    text = json.dumps(dict(sorted(records.items())), indent=1, ensure_ascii=False)
    RECORDS.write_text(text + "\n", encoding="utf-8")


def list_stale(results: Mapping[str, Result]) -> int:
    """Print each stale result with the reason and the command; return how many there are."""
    records = read_records()
    count = 0
    for name, result in results.items():
        found = reasons(result, records.get(name))
        count += bool(found)
        for reason in found:
            print(f"{name}: {reason}\n    {result.command}")
    print(f"{count} of {len(results)} stored results are stale")
    older = [result for result in results.values() if result.measured]
    if older:
        print("\nMeasured with older code, and said so on their pages:")
    for result in older:
        print(f"{result.path}: {result.measured}; a new one needs {result.until}")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    actions = ("list", "record", "confirm", "carry")
    parser.add_argument("action", nargs="?", choices=actions, default="list")
    parser.add_argument("paths", nargs="*")
    parser.add_argument(
        "--leave-out",
        action="append",
        metavar="NAME",
        default=[],
        help="beginning of the names of values that a carried change was meant to change",
    )
    options = parser.parse_args()
    results = read_manifest()
    if options.action == "carry":
        source, *paths = options.paths or [""]
        if not Path(source, "apiece").is_dir() or not set(paths) <= set(results):
            parser.error("carry: give the folder src of an earlier checkout, then results")
        return carry([results[path] for path in paths], Path(source), options.leave_out)
    unknown = [path for path in options.paths if path not in results]
    if unknown:
        parser.error(f"{unknown[0]}: not in research/benchmarks/stored.toml")
    if options.action == "list":
        return 1 if list_stale(results) else 0
    for path in options.paths:
        result = results[path]
        if options.action == "record":
            write_record(result)
            continue
        if not result.repeat:
            parser.error(f"{path}: no units of it can be repeated; run {result.command}")
        units, difference = repeat_units(result)
        if difference is not None:
            print(f"{path}: not confirmed: {difference}")
            return 1
        write_record(result, units)
        print(f"{path}: {len(units)} units give the stored figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
