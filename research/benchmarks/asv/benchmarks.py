"""What users wait for, one question each, kept over time by asv: `make bench`.

Only public names are used, so that the same questions are asked of every version. Whole comparisons
with what a user would pick instead are the other files of this folder.
"""

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def _budgets(groups: int):
    from apiece import Budgets

    epsilons = np.linspace(0.5, 4.0, groups).repeat(6_000 // groups)
    return Budgets(epsilons, 1e-5)


class Starting:
    """Processes: from the shell to an answer."""

    timeout = 120

    def time_import(self):
        subprocess.run([sys.executable, "-c", "import apiece"], check=True)

    def time_help(self):
        subprocess.run([sys.executable, "-m", "apiece", "--help"], check=True, capture_output=True)

    def time_account(self):
        words = "account --noise-multiplier 1 --sampling-probability .02 --steps 1465 --delta 1e-5"
        subprocess.run(
            [sys.executable, "-m", "apiece", *words.split()], check=True, capture_output=True
        )


class Accounting:
    """One curve, and a thousand at once."""

    def setup(self):
        self.apiece = importlib.import_module("apiece")
        self.steps = self.apiece.Repeated(
            self.apiece.Sampled(self.apiece.Gaussian(1.0), 0.02), 1465
        )
        self.noise = np.linspace(0.7, 3.0, 1000)

    def time_epsilon_of_sampled_steps(self):
        self.apiece.privacy_curve(self.steps).epsilon(1e-5)

    def time_a_thousand_epsilons(self):
        self.apiece.accounting.epsilons(
            noise_multiplier=self.noise, sampling_probability=0.02, steps=1000, delta=1e-5
        )


class Planning:
    """Budgets to a verified plan."""

    params = (["sample", "scale", "threshold"], [3, 100])
    param_names = ("strategy", "budgets")

    def setup(self, strategy, groups):
        self.assign = importlib.import_module("apiece").assign
        self.budgets = _budgets(groups)

    def time_assign(self, strategy, groups):
        self.assign(self.budgets, strategy, steps=500, expected_batch_size=256, clip_norm=1.0)


class Training:
    """Twenty private steps of a small network, from the first call on."""

    timeout = 120

    def setup(self):
        import torch

        apiece = importlib.import_module("apiece")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.plan = apiece.assign(
            _budgets(3), "sample", steps=20, expected_batch_size=256, clip_norm=1.0
        )
        self.data = torch.utils.data.TensorDataset(
            torch.randn(6_000, 32), torch.randint(4, (6_000,))
        )

    def time_twenty_steps(self):
        import torch

        from apiece import Trainer

        model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
        )
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Trainer(model, optimizer, loss, self.plan, self.data, seed=0).fit()


class Accounts:
    """A ledger of ten thousand people, and a question to a table of as many."""

    timeout = 120

    def setup(self):
        import pandas as pd

        from apiece.datasets import Numeric, Schema
        from apiece.queries import Session

        self.apiece = importlib.import_module("apiece")
        self.ids = np.arange(10_000)
        people = pd.DataFrame({"id": self.ids, "age": 20.0 + self.ids % 60})
        self.session = Session(
            people, Schema({"age": Numeric(0, 100)}, person="id", rows_per_person=1)
        )

    def time_charge(self):
        with tempfile.TemporaryDirectory() as folder:
            ledger = self.apiece.Ledger.open(f"sqlite:///{Path(folder) / 'people.db'}")
            ledger.enroll(self.ids, 1.0, 1e-6)
            ledger.reserve("one", self.ids, np.ones(10_000), 10.0)
            ledger.commit("one", {})

    def time_mean(self):
        self.session.ask("mean(age)", epsilon=1.0, delta=1e-6)
