"""The way of one budget through the packages, from the table to the plan.

Traces `apiece plan --data` on a small table, after the imports. A call from a function of one
package to a function of another one, the first time that these two meet, begins a stay. It is a
climb where the package entered lies higher than the one that calls, by the order in
tests/test_layers.py: a lower package then runs code of which it cannot know. That includes
functions that were handed down, as to a solver of `numerics`.

    python benchmarks/walk.py [--strategy sample] [--json]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import apiece
from apiece.cli import run

SOURCE = Path(apiece.__file__).parent
TABLE = "name,consent\n" + "".join(f"p{i},{1 + i % 3}\n" for i in range(60))
FLAGS = "--epsilon consent --ids name --delta 1e-5 --batch-size 10 --steps 20 --clip-norm 1"


def layers() -> list[str]:
    """The packages, top to bottom, as the test of the imports has them."""
    text = (Path(__file__).parents[1] / "tests" / "test_layers.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "LAYERS":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise LookupError("tests/test_layers.py defines no LAYERS")


def place(frame: FrameType) -> tuple[str, str] | None:
    """A frame's package and its module and function; None where it is not the library's."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(SOURCE) or frame.f_code.co_name == "<module>":
        return None
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0], ".".join((*parts, frame.f_code.co_qualname))


def walk(action: Any) -> list[tuple[str, str, str]]:
    """Return (from function, package entered, function entered) of each stay, as they begin."""
    seen: set[tuple[str, str]] = set()
    stays: list[tuple[str, str, str]] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        here = place(frame) if event == "call" else None
        if here is None:
            return
        caller, found = frame.f_back, None
        while caller is not None and (found := place(caller)) is None:
            caller = caller.f_back
        if found is not None and found[0] != here[0] and (found[1], here[1]) not in seen:
            seen.add((found[1], here[1]))
            stays.append((found[1], *here))

    sys.setprofile(look)
    try:
        action()
    finally:
        sys.setprofile(None)
    return stays


def climbs(stays: list[tuple[str, str, str]], order: list[str]) -> list[tuple[str, str, str]]:
    """The stays that begin by a call upwards."""
    return [stay for stay in stays if order.index(stay[1]) < order.index(stay[0].split(".")[0])]


def plan(strategy: str) -> None:
    """Run the command on the table."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "people.csv"
        table.write_text(TABLE)
        words = ["plan", "--data", str(table), "--strategy", strategy, *FLAGS.split(), "--json"]
        with contextlib.redirect_stdout(io.StringIO()):
            if run(words):
                raise SystemExit("apiece plan failed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--strategy", default="sample")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    plan(given.strategy)  # imports
    stays = walk(lambda: plan(given.strategy))
    up = climbs(stays, layers())
    rooms = sorted({stay[1] for stay in stays})
    pairs = sorted({f"{caller.split('.')[0]} -> {to}" for caller, to, _ in up})
    if given.json:
        print(json.dumps({"stays": len(stays), "rooms": rooms, "climbs": up, "between": pairs}))
    else:
        print(*(f"{to:12} {name}  <- {caller}" for caller, to, name in stays), sep="\n")
        print(f"{len(stays)} stays in {len(rooms)} packages")
        print(f"climbs between {len(pairs)} pairs of packages:", *pairs)
        print(*(f"  {caller} -> {name}" for caller, _, name in up), sep="\n")
