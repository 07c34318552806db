"""CIFAR-10 on features of a network that public photographs have trained; a private linear head.

Each strategy is tuned by itself on held-out training records, as in `recipes`, whose features no
photograph has shaped. ImageNet's photographs are public, and no promise covers the people on them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apiece.assignment import Strategy, Uniform
from apiece.recipes import Recipe
from research.experiment import Experiment, Outcome, Table
from research.experiments.recipes import Task, after, run, tabulate, units

PHOTOGRAPHS = Recipe(transform="public-backbone", power=0.5, groups=1)


@dataclass(frozen=True)
class OnPhotographs(Task):
    """A task on these features; one budget for all has one strategy."""

    features: Recipe = PHOTOGRAPHS
    steps: tuple[int, ...] = (64, 256)

    def strategies(self, seed: int = 0) -> Mapping[str, Strategy]:
        """Those that differ for these budgets."""
        if self.asks == "1/2/3":
            return super().strategies(seed)
        return {"uniform": Uniform("strictest")}


TASKS: Mapping[str, Task] = {
    "CIFAR-10 (JPEG), a fifth, 1/2/3": OnPhotographs("cifar10-jpeg", "1/2/3", share=0.2),
    "CIFAR-10 (JPEG), a fifth, 1": OnPhotographs("cifar10-jpeg", 1.0, share=0.2),
    "CIFAR-10 (JPEG), 1/2/3": OnPhotographs("cifar10-jpeg", "1/2/3"),
    "CIFAR-10 (JPEG), 1": OnPhotographs("cifar10-jpeg", 1.0),
}


def tables(done: Sequence[Outcome]) -> list[Table]:
    """Return accuracies, gains and settings; nothing was published for these features."""
    reached, gained, _, settings, _ = tabulate(TASKS, done)
    return [reached, gained, settings]


EXPERIMENT = Experiment(
    name="backbone",
    paper="ours",
    shows="CIFAR-10 on features of a network that public photographs have trained",
    cost="half an hour for the features of all images on a busy thread, then seconds a training",
    units=functools.partial(units, TASKS),
    after=functools.partial(after, TASKS),
    run=functools.partial(run, TASKS),
    tables=tables,
    notes=lambda done: (
        "The network is EfficientNet-Lite0 as ImageNet trained it, from the package index; images "
        "are enlarged to 128 pixels. No promise covers the people on ImageNet's photographs. "
        "Settings were chosen on a fifth of the training records, power and groups with them. "
        "`backbone.json` was measured on or before 2026-11-29 with the code up to `e22740c3`, and "
        "not again since: that needs the network and half an hour on one thread."
    ),
    needs=("cifar10-jpeg",),
    reads=lambda unit: ["cifar10-jpeg"],
)
