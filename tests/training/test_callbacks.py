"""Callbacks: what they show is the plan's and the clock's, and they leave the run alone."""

import io
import sys
import types

import pytest
import torch
from rich.console import Console
from torch import nn

from apiece import Budgets, Sample, Scale, assign
from apiece.errors import UnsupportedError
from apiece.training import Evaluation, Progress, ProgressBar, TensorBoard, Trainer

BUDGETS = Budgets.from_groups(
    [("strict", 1.0, 10), ("middle", 2.0, 10), ("weak", 3.0, 20)], 40, 1e-3
)
LOSS = nn.CrossEntropyLoss(reduction="none")
INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(5))
DATA = (INPUTS, (INPUTS[:, 0] > 0).long())


def plan(strategy=None):
    return assign(
        BUDGETS, strategy or Sample(), steps=6, expected_batch_size=8, clip_norm=1.0, method="rdp"
    )


def trainer(the_plan, model=None, data=DATA, **options):
    torch.manual_seed(1)
    model = model or nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    return Trainer(model, optimizer, LOSS, the_plan, data, seed=0, **options)


def at(step, steps=6):
    return Progress(step, steps, 0, 0.01, 0.3)


def shown(the_plan, data):
    """Return what the bar says at each step of a run."""
    texts = []
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    with ProgressBar(the_plan, console=console) as bar:

        def listen(progress):
            bar(progress)
            task = bar._bar._bar.tasks[0]
            texts.append((task.completed, task.total, task.description))

        trainer(the_plan, data=data, callbacks=[listen]).fit()
    assert "6/6" in console.file.getvalue()
    return texts


def test_the_bar_shows_what_was_planned_whatever_the_records_are():
    the_plan = plan()
    seen = shown(the_plan, DATA)
    assert [(done, total) for done, total, _ in seen] == [(k, 6) for k in range(1, 7)]
    assert seen[-1][2] == "planned ε 1 of 1 (strict), ε 3 of 3 (weak)"
    assert 0.99 < the_plan.epsilon_spent[0] < 1
    nothing = (torch.zeros(40, 4), torch.zeros(40, dtype=torch.long))
    assert shown(the_plan, nothing) == seen


def test_evaluation_leaves_modes_and_parameters_alone():
    the_plan = plan()
    plain = trainer(the_plan)
    plain.fit()
    run = trainer(the_plan)
    run.model[1].eval()  # frozen by its owner

    def evaluate(model):
        assert not any(m.training for m in model.modules())
        assert not torch.is_grad_enabled()
        torch.rand(3)
        return float((model(INPUTS).argmax(1) == DATA[1]).float().mean())

    check = Evaluation(run.model, evaluate, every=4)
    run._loop.callbacks = (check,)
    run.fit()
    assert [step for step, _ in check.history] == [4, 6]
    assert [m.training for m in run.model] == [True, False, True]
    again = trainer(the_plan)
    again._loop.callbacks = (Evaluation(again.model, evaluate, every=1),)
    again.fit()
    pairs = zip(plain.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_tensorboard_writes_public_values(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, plan(), every=4)
    for step in range(1, 7):
        board(at(step))
    events = EventAccumulator(str(tmp_path)).Reload()
    spent = events.Scalars("planned ε/strict")
    assert [entry.step for entry in spent] == [4, 6]
    assert spent[-1].value == pytest.approx(plan().epsilon_spent[0])
    assert set(events.Tags()["scalars"]) == {
        "learning rate", "seconds a step", "stage", "planned ε/strict", "planned ε/weak",
    }  # fmt: skip


def test_without_tensorboard_the_error_names_the_extra(tmp_path, monkeypatch):
    for name in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError, match="pip install tensorboard"):
        TensorBoard(tmp_path, plan())


def test_a_bar_needs_no_with_block():
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    bar = ProgressBar(plan(), console=console)
    trainer(bar_plan := plan(), callbacks=[bar]).fit()
    assert not bar._is_running
    assert f"{bar_plan.steps}/6" in console.file.getvalue()


class Shown:
    """A stand-in for a notebook: the states of what is displayed."""

    def __init__(self):
        self.states = []

    def mark_up(self, text):
        return text

    def display(self, text, *, display_id):
        assert display_id
        self.states.append(text)
        return self

    def update(self, text):
        self.states.append(text)


@pytest.mark.parametrize("shell", ["ZMQInteractiveShell", "TerminalInteractiveShell"])
def test_a_notebook_shows_its_own_bar(shell, monkeypatch, capsys):
    fake = Shown()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = type(shell, (), {})
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = fake.mark_up, fake.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    weak = Budgets.from_groups([("strict", 1.0, 10), ("<b>weak", 3.0, 30)], 40, 1e-3)
    the_plan = assign(weak, Scale(), steps=6, expected_batch_size=8, clip_norm=1.0)
    with ProgressBar(the_plan) as bar:
        trainer(the_plan, callbacks=[bar]).fit()
    if shell == "TerminalInteractiveShell":
        assert fake.states == []
        assert "6/6" in capsys.readouterr().err
        return
    assert fake.states[0].startswith('<progress value="0" max="6"')
    assert '<progress value="6" max="6"' in fake.states[-1]
    assert "6 of 6 steps planned ε 1 of 1 (strict), ε 3 of 3 (&lt;b&gt;weak)" in fake.states[-1]


@pytest.mark.slow
def test_in_a_real_notebook(tmp_path):
    """The bar and both tables, as a kernel of Jupyter gives them."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    cells = [
        "import torch\nfrom torch import nn, optim\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "from apiece import Budgets, make_private\nfrom apiece.training import ProgressBar\n"
        "data = TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,)))\n"
        "model = nn.Linear(3, 2)\nasked = Budgets([1.0] * 20 + [3.0] * 20, 1e-3)\n"
        "private = make_private(model, optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss(),\n"
        "    DataLoader(data, 8), asked, epochs=2, clip_norm=1.0, seed=0,\n"
        "    callbacks=lambda plan: [ProgressBar(plan)])\nprivate.fit()",
        "private",
        "private.plan.verify()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    bar, table, checked = (
        [output["data"] for output in cell["outputs"] if "data" in output]
        for cell in notebook["cells"]
    )
    assert '<progress value="10" max="10"' in bar[-1]["text/html"]
    assert "step 10 of 10" in table[0]["text/html"]
    assert "2 of 2 promises kept" in checked[0]["text/html"]
