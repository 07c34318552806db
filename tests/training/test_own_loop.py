"""A loop of one's own: the page's programs, how far they are apart, and what they compute."""

import difflib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from apiece import Budgets, Sample, Scale, Trainer, assign, make_private
from apiece.errors import StateError
from apiece.training import Batch
from apiece.training.epochs import count_expected_records

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"
PROGRAMS = re.findall(r"\*\*(\w+).*?\*\*\n\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
TEXTS = dict(PROGRAMS)
SETUP = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]


def count_changed(old: str, new: str) -> int:
    """Return the lines that are new, or stand in the place of others; of a swap the longer side."""
    matcher = difflib.SequenceMatcher(a=old.splitlines(), b=new.splitlines(), autojunk=False)
    return sum(
        max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"
    )


def test_at_most_eight_lines_are_changed_and_opacus_five() -> None:
    assert list(TEXTS) == ["Plain", "apiece", "Opacus"]
    assert count_changed(TEXTS["Plain"], TEXTS["apiece"]) == 8
    assert count_changed(TEXTS["Plain"], TEXTS["Opacus"]) == 5
    assert count_changed("a\nb\nc\n", "a\nx\nc\nd\n") == 2


@pytest.mark.parametrize("name", ["Plain", "apiece", "Opacus"])
@pytest.mark.filterwarnings("ignore")
def test_the_programs_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "Opacus":
        pytest.importorskip("opacus", reason="opacus is not installed")
    names: dict[str, object] = {}
    exec(SETUP, names)
    first = torch.nn.Linear(5, 2)
    exec(TEXTS[name], names)
    assert len(capsys.readouterr().out.splitlines()) == 2  # evaluated after each epoch
    assert names["model"] is not first
    if name == "apiece":
        private = names["private"]
        assert isinstance(private, Trainer)
        assert private.step_number == private.steps == 20
        spent = private.epsilon_spent()
        assert 0.9 < spent["epsilon=1"] <= 1
        assert 2.7 < spent["epsilon=3"] <= 3


def parts(batch_size: int = 8):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,)))
    model = nn.Linear(3, 2)
    loader = DataLoader(data, batch_size)
    budgets = Budgets(np.where(np.arange(40) < 10, 0.5, 3.0), 1e-3)
    return model, optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss(), loader, budgets


def private(**options):
    return make_private(*parts(), **{"epochs": 3, "clip_norm": 0.7, "seed": 0} | options)


def test_a_loop_is_what_fit_is() -> None:
    whole, looped = private(), private()
    whole.fit()
    seen = []
    for _ in range(3):
        assert len(looped.loader) == 5
        for batch in looped.loader:
            seen.append(batch)
            assert looped.step().step == batch.step + 1
    assert seen == [Batch(step, step // 5) for step in range(15)]
    for mine, other in zip(looped.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_batch_needs_one_step() -> None:
    run = private()
    with pytest.raises(StateError, match="0 steps were taken for batch 0"):
        list(run.loader)
    batches = iter(run.loader)
    next(batches)
    run.fit(2)
    with pytest.raises(StateError, match="2 steps were taken for batch 0"):
        next(batches)


def test_an_epoch_too_many_is_refused() -> None:
    run = private(epochs=1)
    for _ in run.loader:
        run.step()
    with pytest.raises(StateError, match="as many epochs"):
        next(iter(run.loader))


def test_a_loop_that_was_broken_off_goes_on_where_it_stands() -> None:
    run = private(epochs=1)
    for batch in run.loader:
        run.step()
        if batch.step == 2:
            break
    assert [batch.step for batch in run.loader if run.step()] == [3, 4]


def test_a_release_by_a_loop_deletes_the_key_of_its_noise(tmp_path: Path) -> None:
    run = private(epochs=1, checkpoint=tmp_path / "run", seed=None)
    for _ in run.loader:
        run.step()
    *arguments, loader, _ = parts()
    finished = Trainer.resume(tmp_path / "run", *arguments[:2], run.loss_fn, run.plan, loader)
    assert finished.step_number == 5
    with pytest.raises(StateError, match="all 5 steps"):
        finished.step()


def test_spending_grows_to_that_of_the_plan() -> None:
    run = private()
    before = run.epsilon_spent()
    assert before == {"epsilon=0.5": 0.0, "epsilon=3": 0.0}
    run.fit(7)
    half = run.epsilon_spent()
    run.fit()
    whole = run.epsilon_spent()
    assert list(whole.values()) == run.plan.epsilon_spent.tolist()
    assert all(0 < half[name] < whole[name] for name in whole)
    # A run of seven steps by the same numbers spends what the first seven of fifteen do.
    for group, name in enumerate(half):
        curve = run.plan.curve(group)
        assert curve.epsilon(1e-3).upper >= half[name]


def test_expected_records_are_those_of_the_steps_to_come() -> None:
    budgets = Budgets([1.0] * 50, 1e-3)
    plan = assign(budgets, Sample(), steps=6, expected_batch_size=10, clip_norm=1.0)
    assert count_expected_records(plan) == pytest.approx(60)
    assert count_expected_records(plan, 4) == pytest.approx(20)
    assert count_expected_records(plan, 6) == 0


def test_a_notebook_s_table_has_large_groups_alone() -> None:
    run = private(strategy=Scale())
    run.fit(1)
    assert repr(run) == "Trainer(Linear, scale, step 1 of 15)"
    table = run._repr_html_()
    assert "epsilon=0.5" in table
    assert "step 1 of 15" in table
    checked = run.plan.verify()
    assert repr(checked) == "Verification(2 of 2 promises kept)"
    assert "<td>epsilon=3</td><td>3</td><td>0.001</td>" in checked._repr_html_()
    model, optimizer, loss, loader, _ = parts()
    few = Budgets(np.where(np.arange(40) < 3, 0.5, 3.0), 1e-3)
    small = make_private(model, optimizer, loss, loader, few, epochs=1, clip_norm=1.0)
    for page in (small._repr_html_(), small.plan.verify()._repr_html_()):
        assert "epsilon=0.5" not in page
        assert "1 groups of fewer than 10 records are not shown" in page
