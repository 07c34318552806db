"""CONTRIBUTING's examples run, and the code is as it says."""

import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from apiece import Gaussian, Laplace, Repeated, Sampled, cli, privacy_curve
from apiece.assignment.front import STRATEGIES
from apiece.datasets.packaged import PACKAGED
from apiece.mechanisms.algebra import Primitive

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "apiece"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```(?:python|toml)\n(.*?)```", TEXT, re.DOTALL)


def run(marker: str) -> dict[str, Any]:
    (block,) = [block for block in BLOCKS if marker in block]
    names: dict[str, Any] = {"__name__": "contributing"}
    exec(compile(block, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    return names


def test_each_station_of_a_flow_is_there() -> None:
    """A file without a folder lies beside the one that its line names before."""
    section = TEXT.partition("### Four flows")[2].partition("\n## ")[0]
    stations = 0
    for line in section.splitlines():
        folder = SOURCE
        for file, name in re.findall(r"`([\w/]+\.py)` `(\w+)`", line):
            path = SOURCE / file if "/" in file else folder / file
            folder = path.parent
            defined = re.search(rf"^(def|class) {name}\b", path.read_text(), re.MULTILINE)
            assert defined, f"{file} has no {name}"
            stations += 1
    assert stations > 35


def test_an_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for what it knows, and never contradicts the others."""
    from apiece.accounting import choose

    names, laplace = run("class Concentrated"), Repeated(Laplace(3.0), 4)
    known = privacy_curve(laplace).epsilon([1e-5, 1e-300])
    monkeypatch.setattr(choose, "TABLE", names["table"])
    (asked,) = [a for a in choose.choose(laplace, "best").answers if a.evaluator == "concentrated"]
    assert 2 / 9 <= asked.profile.rho <= 2 / 9 * (1 + 1e-12)
    found = privacy_curve(laplace, method="best").epsilon([1e-5, 1e-300])
    assert (known.lower <= found.upper).all()
    assert (found.upper <= known.upper).all()
    others = choose.choose(Gaussian(1.0), "best").answers
    assert "concentrated" not in [answer.evaluator for answer in others]


def test_a_strategy() -> None:
    plan = run("class Cautious")["plan"]
    assert plan.strategy == "cautious"
    assert plan.verify().ok


def test_an_operator_rule() -> None:
    from apiece.errors import UnsupportedError
    from apiece.training import clip_and_sum
    from apiece.training.clipping import table

    gain = run("own::gain")["gain"]
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4)
    inputs, targets = torch.randn(6, 3), torch.randint(2, (6,))

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(gain(outputs, 2.0), y, reduction="none")

    def clipped(method: str) -> dict[str, torch.Tensor]:
        total = clip_and_sum(model, loss, inputs, targets, 0.3, method=method)
        return dict(total.gradients)

    proved, alone = clipped("proved"), clipped("alone")
    for name, expected in alone.items():
        torch.testing.assert_close(proved[name], expected)
    for name in [name for name in table.RULES if name.startswith("own::")]:
        del table.RULES[name]
    with pytest.raises(UnsupportedError, match="own::gain: no rule says"):
        clip_and_sum(torch.nn.Linear(3, 4), loss, inputs, targets, 0.3, method="proved")


class House:
    """A copy of the source, in which a contributor follows CONTRIBUTING."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(SOURCE, folder / "apiece", ignore=shutil.ignore_patterns("__pycache__"))

    def put(self, place: str) -> None:
        """Write the example that names `place` in its first line, whole, to that place."""
        (block,) = [b for b in BLOCKS if b.startswith(f"# src/apiece/{place}")]
        (self.folder / "apiece" / place).write_text(block, encoding="utf-8")

    def change(self, place: str, line: str, into: str) -> None:
        path = self.folder / "apiece" / place
        text = path.read_text(encoding="utf-8")
        assert text.count(line) == 1, f"{place}: {line!r}"
        path.write_text(text.replace(line, into), encoding="utf-8")

    def run(self, *words: str, code: int = 0, given: str = "") -> str:
        found = subprocess.run(
            [sys.executable, "-W", "error", *words],
            input=given, capture_output=True, text=True, timeout=120, cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
        )  # fmt: skip
        assert found.returncode == code, found.stderr
        return found.stdout if code == 0 else found.stderr

    def apiece(self, *words: str, code: int = 0, given: str = "") -> str:
        main = "from apiece.cli import main; main()"
        return self.run("-c", main, *words, code=code, given=given)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_mechanism(house: House) -> None:
    """One file and a name in one line: accountants, coins, JSON and the command line know it."""
    house.put("mechanisms/flipped_bits.py")
    algebra = "mechanisms/algebra.py"
    house.change(
        algebra,
        "from apiece.mechanisms.mixture import MixtureOfGaussians\n",
        "from apiece.mechanisms.mixture import MixtureOfGaussians\n"
        "from apiece.mechanisms.flipped_bits import FlippedBits\n",
    )
    house.change(algebra, "    | Laplace\n", "    | Laplace\n    | FlippedBits\n")
    asked = '[{"repeated": {"mechanism": {"flipped_bits": {"flip": 0.25}}, "times": 2}}]'
    told = json.loads(house.apiece("account", "-", "--delta", "0.01", "--json", given=asked))
    # by hand: two answers of three outcomes; δ(ε) of the largest losses, 4 log 3 and 2 log 3
    p, q = [9 / 16, 6 / 16, 1 / 16], [1 / 16, 6 / 16, 9 / 16]
    pairs = [(a * b, c * d) for a, c in zip(p, q, strict=True) for b, d in zip(p, q, strict=True)]

    def delta(epsilon: float) -> float:
        return sum(max(0.0, one - math.exp(epsilon) * other) for one, other in pairs)

    low, high = (told["results"][0]["epsilon"][end] for end in ("lower", "upper"))
    assert low <= high <= low * 1.001
    assert delta(low * (1 + 1e-9)) <= 0.01 <= delta(low * (1 - 1e-3))


def test_a_dataset(house: House) -> None:
    """Two files and an entry: its name is a table wherever one is asked for."""
    import pandas as pd

    house.put("datasets/data/penguins.toml")
    house.change(
        "datasets/packaged.py",
        "PACKAGED: Final = {\n",
        'PACKAGED: Final = {\n    "penguins": Packaged("Palmer penguins", "species", None),\n',
    )
    table = pd.DataFrame({"species": ["Adelie", "Gentoo"], "body_mass_g": [3750.0, 5000.0]})
    table.to_parquet(house.folder / "apiece/datasets/data/penguins.parquet")
    assert "upper = 7000" in house.apiece("schema", "penguins", "--label", "species")
    told = house.run(
        "-c",
        "from apiece.datasets import load, packaged_schema\n"
        "print(load('penguins').shape, packaged_schema('penguins').classes('species'))",
    )
    assert told == "(2, 2) ('Adelie', 'Chinstrap', 'Gentoo')\n"


def test_a_command(house: House) -> None:
    """One file: listed, with its help, one document of JSON, and mistakes in one line."""
    house.put("cli/halve.py")
    words = ("--delta", "1e-5", "--steps", "1000", "--sampling-probability", "0.01")
    assert "half the steps" in house.apiece("--help")
    z = json.loads(house.apiece("halve", "--epsilon", "1", *words, "--json"))["noise_multiplier"]
    spent = privacy_curve(Repeated(Sampled(Gaussian(z), 0.01), 500)).epsilon(1e-5)
    assert 0.999 <= spent.lower <= spent.upper <= 1
    error = house.apiece("halve", "--epsilon", "-1", *words, code=2)
    assert len(error.strip().splitlines()) == 1


def test_an_adapter(house: House) -> None:
    """One file: refused in one line without the tool; with it, only public numbers go out."""
    house.put("adapters/comet.py")
    (house.folder / "use.py").write_text(USE)
    assert "pip install comet_ml" in house.run("use.py")
    (house.folder / "comet_ml.py").write_text(
        "logged = []\nclass Experiment:\n    def log_metrics(self, row, step): logged.append(row)\n"
        "def get_running_experiment(): return Experiment()\n"
    )
    rows = json.loads(house.run("use.py"))
    assert len(rows) == 3
    assert all(isinstance(value, float | int) for row in rows for value in row.values())


USE = """
import json, torch
from apiece import Budgets, Scale, Trainer, assign
from apiece.adapters.comet import Comet
from apiece.errors import UnsupportedError

plan = assign(Budgets([1.0] * 20, 1e-2), Scale(), steps=3, expected_batch_size=5, clip_norm=1.0)
try:
    told = Comet(plan)
except UnsupportedError as error:
    print(error)
else:
    import comet_ml
    model = torch.nn.Linear(2, 2)
    data = torch.randn(20, 2), torch.zeros(20, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    Trainer(model, optimizer, loss, plan, data, callbacks=[told]).fit()
    print(json.dumps(comet_ml.logged))
"""


def test_every_mechanism_is_a_frozen_value_of_its_package() -> None:
    for kind in get_args(Primitive):
        assert kind.__module__.startswith("apiece.mechanisms.")
        assert dataclasses.is_dataclass(kind)
        assert kind.__dataclass_params__.frozen


def test_every_strategy_has_a_name() -> None:
    for name, kind in STRATEGIES.items():
        assert kind.name == name
        assert kind.__module__.startswith("apiece.assignment.")


def test_every_packaged_table_has_its_parts() -> None:
    notice = (ROOT / "NOTICE").read_text().lower()
    for name, packaged in PACKAGED.items():
        for ending in ("parquet", "toml"):
            assert (SOURCE / "datasets" / "data" / f"{name}.{ending}").exists()
        assert name.split("_")[0] in notice, packaged.title


def test_every_command_ends_its_help_with_an_example() -> None:
    names = cli.group.list_commands(None)  # type: ignore[arg-type]
    assert len(names) >= 10
    for name in names:
        command = cli.group.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        parts = [command, *getattr(command, "commands", {}).values()]
        assert any("xample" in (part.epilog or "") for part in parts), name
