"""CONTRIBUTING's examples run, and the code is as it says."""

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from apiece import cli
from apiece.assignment import STRATEGIES
from apiece.datasets import PACKAGED
from apiece.mechanisms import Primitive

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "apiece"
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)


def run(marker: str) -> dict[str, Any]:
    (block,) = [block for block in BLOCKS if marker in block]
    names: dict[str, Any] = {"__name__": "contributing"}
    exec(compile(block, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    return names


def test_an_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for what it knows, and never contradicts the others."""
    from apiece import Gaussian, Laplace, Repeated, privacy_curve
    from apiece.accounting import choose

    names, laplace = run("class Pure"), Repeated(Laplace(3.0), 4)
    known = privacy_curve(laplace).epsilon([1e-5, 1e-300])
    monkeypatch.setattr(choose, "TABLE", names["table"])
    (asked,) = [a for a in choose.choose(laplace, "best").answers if a.evaluator == "pure bound"]
    assert 4 / 3 <= asked.profile.most <= 4 / 3 * (1 + 1e-12)
    found = privacy_curve(laplace, method="best").epsilon([1e-5, 1e-300])
    assert (known.lower <= found.upper).all()
    assert (found.upper <= known.upper).all()
    others = choose.choose(Gaussian(1.0), "best").answers
    assert "pure bound" not in [answer.evaluator for answer in others]


def test_a_strategy() -> None:
    plan = run("class Cautious")["plan"]
    assert plan.strategy == "cautious"
    assert plan.verify().ok


def test_a_layer_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    from apiece.sensitivity import neural
    from apiece.training import clip_and_sum
    from apiece.training.clipping.rules import RULES

    names = run("class Gain")
    rule = RULES[names["Gain"]]
    monkeypatch.setitem(RULES, names["Gain"], dataclasses.replace(rule, gives=counted(rule.gives)))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), names["Gain"](4), torch.nn.Linear(4, 2))
    inputs, targets = torch.randn(6, 3), torch.randint(2, (6,))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    booked, one_by_one = (
        clip_and_sum(model, loss, inputs, targets, torch.full((6,), 0.3), method=method)
        for method in ("book-keeping", "loop")
    )
    for name, expected in one_by_one.gradients.items():
        torch.testing.assert_close(booked.gradients[name], expected)
    before = len(CALLS)
    assert before > 0
    (norms, growth), (plain, expected) = (
        method(model, loss, inputs, targets)
        for method in (neural.by_ghost_norms, neural.by_torch_func)
    )
    torch.testing.assert_close(norms, plain)
    torch.testing.assert_close(growth, expected)
    assert len(CALLS) > before


CALLS: list[str] = []


def counted(function: Any) -> Any:
    def of(*args: Any) -> Any:
        CALLS.append(function.__name__)
        return function(*args)

    return of


def test_every_mechanism_has_a_file_and_is_a_frozen_value() -> None:
    for kind in get_args(Primitive):
        assert (SOURCE / "mechanisms" / f"{kind.__module__.rsplit('.')[-1]}.py").exists()
        assert dataclasses.is_dataclass(kind)
        assert kind.__dataclass_params__.frozen
    modules = [kind.__module__ for kind in get_args(Primitive)]
    assert len(set(modules)) == len(modules)


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
