"""How many small faults, planted one at a time, the tests find: a sample of mutants by mutmut.

python -m research.benchmarks.mutants --sample 60 --packages filters plan     # `make mutants`
python -m research.benchmarks.mutants --show --packages filters               # those nobody found

mutmut plants the faults, keeps which tests reach which function, runs each mutant in a fork under
a limit of time, and remembers what it has seen: a run that was killed goes on where it stopped.
Here is the rest. Each package is tested by its own folders of tests, in a copy under .mutants/.
A sample is drawn at random among all mutants of a package, the same for the same seed and a part
of every larger one. A mutant that only changes the text of an error or of a string is none. One
that no fast test finds is run by the slow tests as well. A sample by another seed than 0 is stored
as the second draw: of faults for which no test was written. What no test can find is in
mutants.toml, with the reason. Decorated functions (properties among them) and constants are not
mutated.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import fnmatch
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

from research import RESULTS, ROOT
from research.benchmarks.ledger import machine

HERE = Path(__file__).parent
WORK = ROOT / ".mutants"
RESULT = RESULTS / "mutants.json"
UNSHRUNK = """import re

from hypothesis import Phase, settings

settings.register_profile("unshrunk", phases=[Phase.explicit, Phase.reuse, Phase.generate])
settings.load_profile("unshrunk")


def pytest_make_parametrize_id(val):
    if isinstance(val, str | bytes):
        return re.sub("[^A-Za-z0-9.+-]", "_", ascii(val))
"""  # one example that fails is enough; ids of texts and bytes that every collection finds again
PROGRAM = """
import sys
from mutmut import __main__ as program
from mutmut.workers.isolation import ForkServerRunner

ForkServerRunner.run_clean_tests = lambda self, tests: 0  # all have run for their statistics
if sys.argv[1] == "generate":
    program.collect_or_load_stats = lambda *given, **options: sys.exit()
    sys.argv[1] = "run"
program.cli()
"""
UNESCAPED = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support"
SLOW_LIMIT = 600  # seconds for the slow tests of one mutant
BESIDE = ("research",)  # folders that tests read, of which nothing is mutated
FOUND = {"killed", "timeout", "killed slowly"}
STATUS = {0: "survived", 1: "killed", 3: "killed", 5: "no tests", 33: "no tests"}
STATUS |= dict.fromkeys((36, 24, -24, 152), "timeout")


@dataclass(frozen=True)
class Package:
    """What is mutated, by which tests it is judged, and which of them need more than a copy."""

    source: tuple[str, ...]
    tests: tuple[str, ...]
    left_out: tuple[str, ...] = ()


PACKAGES = {
    "filters": Package(("filters/*",), ("filters", "laws/test_extremes.py")),
    "plan": Package(
        ("plan/*",),
        ("plan", "laws/test_plans.py", "laws/test_consents.py", "budgets/test_release.py"),
    ),
    "contract": Package(("contract/*",), ("contract",)),
    "mechanisms": Package(
        ("mechanisms/*",), ("mechanisms", "laws/test_accountants.py", "laws/test_extremes.py")
    ),
    "numerics": Package(("numerics/*",), ("numerics", "accounting/closed")),
    "accounting": Package(
        ("accounting/*",),
        (
            "accounting",
            "laws/test_accountants.py",
            "laws/test_extremes.py",
            "laws/test_mass.py",
        ),
    ),
    "ledger": Package(("ledger/*",), ("ledger",)),
    "queries": Package(("queries/*",), ("queries",)),
    "noise": Package(
        ("training/randomness.py",),
        (
            "training/test_noise.py",
            "training/test_randomness.py",
            "statistical/test_noise.py",
            "statistical/test_sampling.py",
        ),
    ),
    "pate": Package(("pate/*",), ("pate",)),
    "reporting": Package(
        ("reporting/*",),
        ("reporting", "neighbours/test_pages.py", "audit/test_verdicts.py"),
        ("reporting/test_browser.py",),  # of Chromium
    ),
    "assignment": Package(
        ("assignment/*",),
        ("assignment", "laws/test_plans.py"),
        (  # of pages, which are not in the copy
            "assignment/test_gains.py::test_the_packaged_table_and_the_page_are_of_the_stored_results",
            "assignment/test_gains.py::test_the_packaged_predictor_is_of_the_stored_results",
        ),
    ),
    "budgets": Package(
        ("budgets/*",),
        ("budgets", "laws/test_consents.py", "laws/test_ids.py", "laws/test_breaks_by_hand.py"),
    ),
    "jobs": Package(("jobs/*",), ("jobs", "neighbours/test_pages.py")),
    "audit": Package(
        ("audit/*",),
        ("audit", "statistical/test_audit_bounds.py", "laws/test_breaks_by_hand.py"),
    ),
    "clipping": Package(
        ("training/clipping/*",),
        ("training/clipping",),
        (  # searches, and tests in processes of their own: too long for a run a mutant
            "training/clipping/test_arrangements.py",
            "training/clipping/test_channels.py",
            "training/clipping/test_libraries.py",
            "training/clipping/test_share.py",
            "training/clipping/test_share_of_persons.py",
            "training/clipping/test_sharding.py",
        ),
    ),
}


@dataclass(frozen=True)
class Mutant:
    """One fault: mutmut's name of it, where it is, and the change as `old => new`."""

    name: str
    where: str
    change: str
    status: str


class Plain(ast.NodeTransformer):
    """A function without its texts: strings, the errors it raises, names given to checks."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = ast.unparse(node.func)
        if called.startswith("_check.") and node.args:
            node.args[0] = ast.Constant("")
        if called in {"warnings.warn", "warn"}:
            node.args = []
        return node


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--sample", type=int, default=100, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="ask again about those not found")
    parser.add_argument("--no-slow", action="store_true", help="the fast tests alone")
    parser.add_argument("--show", action="store_true", help="run nothing, show what was not found")
    given = parser.parse_args()
    os.nice(15)
    for name in given.packages:
        folder = WORK / name
        if not given.show:
            changed = copy(folder, PACKAGES[name])
            if changed or not any(metas(folder)):
                forget(folder, changed)
                mutmut(folder, "generate")
            test(folder, given.sample, given.seed, given.again)
            if not given.no_slow:
                test_slowly(folder, PACKAGES[name], given.sample, given.seed, given.again)
            store(name, given.sample, given.seed)
        show(name, given.sample, given.seed)


# --- the copy in which mutmut works -------------------------------------------------------------


def copy(folder: Path, package: Package) -> list[Path]:
    """Bring the copy up to date and return the files that changed.

    Only files that differ get a new time, which is what mutmut looks at.
    """
    changed: list[Path] = []
    # Python remembers of a folder that is not there when it starts that nothing can be found in it.
    (folder / "mutants" / "src").mkdir(parents=True, exist_ok=True)
    (folder / "mutants" / "src" / "unshrunk.py").write_text(UNSHRUNK)
    for part in ("src", "tests", *BESIDE):
        theirs = {p.relative_to(ROOT) for p in (ROOT / part).rglob("*") if p.is_file()}
        theirs = {p for p in theirs if "__pycache__" not in p.parts and ".egg-info" not in str(p)}
        for path in theirs:
            target, content = folder / path, (ROOT / path).read_bytes()
            if not target.exists() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                changed.append(path)
        for old in [
            p for p in (folder / part).rglob("*.py") if p.relative_to(folder) not in theirs
        ]:
            old.unlink()
            changed.append(old.relative_to(folder))
            (folder / "mutants" / old.relative_to(folder)).unlink(missing_ok=True)
    settings = {
        "source_paths": ["src/apiece"],
        "also_copy": list(BESIDE),
        "only_mutate": [f"src/apiece/{source}" for source in package.source],
        "pytest_add_cli_args_test_selection": [
            *("-m", "not slow"),
            *selection(package),
        ],
        # pytest escapes ids each time that it collects: those with backslashes are not found again
        "pytest_add_cli_args": ["-o", f"{UNESCAPED}=true"],
        "process_isolation": "forkserver",
        "use_git_change_detection": False,
        "on_dependency_change": "ignore",
        "timeout_constant": 10.0,
        "timeout_multiplier": 10.0,  # by the clock: a busy machine is slow too
    }
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    text = (ROOT / "pyproject.toml").read_text() + f"\n[tool.mutmut]\n{table}\n"
    (folder / "pyproject.toml").write_text(text)
    return changed


def forget(folder: Path, changed: list[Path]) -> None:
    """Forget which functions the tests in changed files reach; mutmut then runs these again.

    Where anything but tests has changed, all are forgotten.
    """
    path = folder / "mutants" / "mutmut-stats.json"
    if not path.exists():
        return
    if not all(file.parts[0] == "tests" and file.name.startswith("test_") for file in changed):
        path.unlink()
        return
    gone = {str(file) for file in changed}

    def stays(test: str) -> bool:
        return test.partition("::")[0] not in gone

    stats = json.loads(path.read_text())
    reached = stats["tests_by_mangled_function_name"]
    for function_name, tests in reached.items():
        reached[function_name] = [test for test in tests if stays(test)]
    durations = stats["duration_by_test"]
    stats["duration_by_test"] = {test: durations[test] for test in durations if stays(test)}
    path.write_text(json.dumps(stats))


def selection(package: Package) -> list[str]:
    """Return the arguments by which pytest selects the tests that judge a package."""
    left_out = [
        f"--{'deselect' if '::' in tests else 'ignore'}=tests/{tests}" for tests in package.left_out
    ]
    return [*(f"tests/{tests}" for tests in package.tests), *left_out]


def mutmut(folder: Path, task: str, *names: str) -> None:
    """Let mutmut generate mutants or run those named, one at a time; it speaks in mutmut.log."""
    command = [sys.executable, "-c", PROGRAM, task, "--max-children", "1", *names]
    with (folder / "mutmut.log").open("a") as log:
        told: dict[str, Any] = {"cwd": folder, "env": environment(folder)}
        done = subprocess.run(command, stdout=log, stderr=log, **told)
    if done.returncode:
        lines = (folder / "mutmut.log").read_text().replace("\r", "\n").splitlines()
        said = [line for line in lines if line.strip() and not "⠀" <= line[0] <= "⣿"]
        raise SystemExit(
            f"{folder.name}: mutmut stopped: {' '.join(said[-3:])}\nWhere a test fails without a "
            f"mutant: cd {folder.relative_to(ROOT)}/mutants; PYTHONPATH=src pytest --rootdir=. -x"
        )


def environment(folder: Path, mutant: str | None = None) -> dict[str, str]:
    """Return the environment in which tests, and processes that they start, find the mutants."""
    own = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(folder / "mutants" / "src"), *([own] if own else [])])
    chosen = {} if mutant is None else {"MUTANT_UNDER_TEST": mutant}
    return os.environ | {"PYTHONPATH": path, "PYTEST_PLUGINS": "unshrunk"} | chosen


# --- the mutants --------------------------------------------------------------------------------


def metas(folder: Path) -> Iterator[tuple[Path, dict[str, int | None]]]:
    for path in sorted(folder.glob("mutants/src/apiece/**/*.meta")):
        yield path.with_suffix(""), json.loads(path.read_text())["exit_code_by_key"]


def mutants(folder: Path) -> list[Mutant]:
    """Every mutant of a package that changes more than a text."""
    found = []
    slow = slow_results(folder)
    for path, codes in metas(folder):
        lines = path.read_text().splitlines(keepends=True)
        spans = json.loads(path.with_name(path.name + ".spans").read_text())["spans"]
        plain: dict[str, str] = {}
        for key, code in codes.items():
            module, _, name = key.rpartition(".")
            base = name.rpartition("__mutmut_")[0]
            old, new = (function(lines, spans[n]) for n in (f"{base}__mutmut_orig", name))
            plain[base] = plain.get(base) or without_text(old)
            if plain[base] == without_text(new):
                continue
            where = f"{module}.{base.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"
            status = STATUS.get(code, "untested") if code is not None else "untested"
            change = difference(old, new)
            if status in ("survived", "no tests"):  # by the fast tests
                status = slow.get(f"{where}: {change}", status)
            found.append(Mutant(key, where.removeprefix("apiece."), change, status))
    return found


def function(lines: list[str], span: list[int]) -> str:
    """Return the source of one generated function, under one name for the original and mutants."""
    source = "".join(lines[span[0] - 1 : span[1]]).lstrip("\n")
    if source[0].isspace():  # a method, whose texts may begin at the margin
        source = "if True:\n" + source
    return re.sub(r"def \S+?__mutmut_(orig|\d+)", "def f", source, count=1)


def without_text(source: str) -> str:
    return ast.dump(Plain().visit(ast.parse(source)))


def difference(old: str, new: str) -> str:
    """Return `old => new`, of the lines that differ."""
    lines = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    gone, come = (" ".join(x[2:].strip() for x in lines if x[:2] == sign) for sign in ("- ", "+ "))
    return f"{gone} => {come}"


def sample(folder: Path, size: int, seed: int) -> list[Mutant]:
    """Draw mutants in the order of a hash of what they are: a larger sample holds the smaller."""
    seen: Counter[str] = Counter()

    def place(mutant: Mutant) -> bytes:
        what = f"{seed} {mutant.where} {mutant.change}"
        seen[what] += 1  # the same change at several places of one function
        return hashlib.sha256(f"{what} {seen[what]}".encode()).digest()

    return sorted(mutants(folder), key=place)[:size]


def equivalents() -> list[dict[str, str]]:
    return list(tomllib.loads((HERE / "mutants.toml").read_text()).get("equivalent", []))


def reason(mutant: Mutant, known: list[dict[str, str]]) -> str | None:
    """Return why no test can find this mutant, where that is known."""
    for entry in known:
        if fnmatch.fnmatch(mutant.where, entry["where"]) and re.search(
            entry["change"], mutant.change
        ):
            return entry["reason"]
    return None


# --- running them -------------------------------------------------------------------------------


def test(folder: Path, size: int, seed: int, again: bool) -> None:
    """Run the sample's mutants that have no result yet by the fast tests."""
    wanted = {"untested"} | ({"survived", "survived all", "no tests"} if again else set())
    known = equivalents()
    names = [
        mutant.name
        for mutant in sample(folder, size, seed)
        if mutant.status in wanted and not (mutant.status != "untested" and reason(mutant, known))
    ]
    print(f"{folder.name}: {len(names)} mutants to run", flush=True)
    if names:
        mutmut(folder, "run", *names)
    failed = sum(mutant.status == "untested" for mutant in sample(folder, size, seed))
    if failed:
        print(f"{folder.name}: {failed} mutants have no result: pytest could not be run for them")


def slow_results(folder: Path) -> dict[str, str]:
    path = folder / "slow.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def test_slowly(folder: Path, package: Package, size: int, seed: int, again: bool) -> None:
    """Run those that survived the fast tests by the slow tests of the same folders.

    A run that takes too long finds nothing: a busy machine is slow too.
    """
    known = equivalents()
    results = slow_results(folder)
    wanted = [
        mutant
        for mutant in sample(folder, size, seed)
        if mutant.status not in {"untested", "killed", "timeout"} and not reason(mutant, known)
    ]
    wanted = [m for m in wanted if again or fault(m) not in results]
    tests = selection(package)
    if wanted and slow_tests(folder, tests, None) == "killed slowly":
        raise SystemExit(f"{folder.name}: a slow test fails without a mutant")
    for mutant in wanted:
        results[fault(mutant)] = slow_tests(folder, tests, mutant.name)
        (folder / "slow.json").write_text(json.dumps(results, indent=1))


def fault(mutant: Mutant) -> str:
    return f"apiece.{mutant.where}: {mutant.change}"


def slow_tests(folder: Path, tests: list[str], mutant: str | None) -> str:
    command = [sys.executable, "-m", "pytest", "--rootdir=.", "-x", "-q", "-m", "slow", *tests]
    told: dict[str, Any] = {"cwd": folder / "mutants", "env": environment(folder, mutant)}
    try:
        done = subprocess.run(command, capture_output=True, timeout=SLOW_LIMIT, **told)
    except subprocess.TimeoutExpired:
        return "survived all"
    return "killed slowly" if done.returncode == 1 else "survived all"


# --- what came of it ----------------------------------------------------------------------------


def interval(killed: int, size: int) -> list[float]:
    """Return the exact (Clopper-Pearson) 95 % interval of a share."""
    low = float(beta.ppf(0.025, killed, size - killed + 1)) if killed else 0.0
    high = float(beta.ppf(0.975, killed + 1, size - killed)) if killed < size else 1.0
    return [math.floor(low * 1000) / 1000, math.ceil(high * 1000) / 1000]


def share(killed: int, size: int) -> dict[str, Any]:
    found = round(killed / max(size, 1), 3)
    return {"share": found, "interval": interval(killed, size), "of": size}


def store(name: str, size: int, seed: int) -> None:
    """Write a package's score into the results, beside those of the others."""
    known = equivalents()
    everything = mutants(WORK / name)
    drawn = [m for m in sample(WORK / name, size, seed) if m.status != "untested"]
    judged = [m for m in drawn if m.status in FOUND or not reason(m, known)]
    count = Counter(m.status for m in judged)
    fast = count["killed"] + count["timeout"]
    every = fast + count["killed slowly"]
    left = count["survived"] + count["no tests"]  # by the slow tests as well, unless not asked
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {"packages": {}}
    stored["machine"] = machine()
    draw = stored["packages"] if seed == 0 else stored.setdefault("second draw", {})
    before = draw.get(name, {})
    first = before.get("at first") if before.get("seed") == seed else None
    draw[name] = {
        "mutants": len(everything),
        "seed": seed,
        "sample": len(judged),
        "not run yet": min(size, len(everything)) - len(drawn),
        "explained": len(drawn) - len(judged),
        "killed": count["killed"],
        "timeouts": count["timeout"],
        "survived": count["survived"] + count["survived all"],
        "no tests": count["no tests"],
        "at first": first or share(fast, len(judged)),
        "make test": share(fast, len(judged)),
        "make test-all": None if left else share(every, len(judged)),
    }
    first_draw = stored["packages"]
    stored["by the number of mutants"] = {
        suite: overall([row for row in first_draw.values() if row.get(suite)], suite)
        for suite in ("at first", "make test", "make test-all")
    }
    # before tests were written for what was drawn: of the second draw, where there is one
    fresh = first_draw | stored.get("second draw", {})
    stored["by the number of mutants"]["of what no test was written for"] = overall(
        list(fresh.values()), "at first"
    )
    RESULT.write_text(json.dumps(stored, indent=1) + "\n")


def overall(rows: list[dict[str, Any]], suite: str) -> dict[str, Any] | None:
    """Return the share of all mutants of these packages, each with its number of mutants.

    And its 95 % interval: of sums of independent shares, each as likely as Jeffreys' rule says.
    """
    if not rows:
        return None
    weight = np.array([row["mutants"] for row in rows]) / sum(row["mutants"] for row in rows)
    size = np.array([row[suite]["of"] for row in rows])
    found = np.round(size * [row[suite]["share"] for row in rows])
    generator = np.random.default_rng(0)
    draws = generator.beta(found + 0.5, size - found + 0.5, (100_000, size.size)) @ weight
    low, high = np.quantile(draws, [0.025, 0.975])
    share = math.floor(weight @ [row[suite]["share"] for row in rows] * 1000 + 1e-9) / 1000
    ends = math.floor(low * 1000) / 1000, math.ceil(max(high, share) * 1000) / 1000
    return {"share": share, "interval": list(ends)}


def show(name: str, size: int, seed: int) -> None:
    """Print the score and the mutants that nothing found."""
    known = equivalents()
    drawn = sample(WORK / name, size, seed)
    print(name, dict(Counter(m.status for m in drawn)))
    for mutant in drawn:
        if mutant.status not in {"untested", *FOUND}:
            why = reason(mutant, known)
            note = f"explained: {why}" if why else mutant.status
            print(f"  {mutant.name}\n    {mutant.change}\n    {note}")


if __name__ == "__main__":
    main()
