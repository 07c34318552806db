"""Train a convolutional network on Fashion-MNIST with a budget for every picture, and report.

DATA is a folder with the four files of the data set. Two plans with the same promises are run:
individual budgets, and the strictest one for all.

python examples/finetune_images.py DATA/fashion-mnist --out runs/images
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from apiece import Budgets, Plan, Sample, Trainer, Uniform, assign, report

sys.path.insert(0, str(Path(__file__).parents[1]))
from research.experiments.pictures import idx_folder

GROUPS = [("strict", 1.0, 0.34), ("medium", 2.0, 0.43), ("weak", 3.0, 0.23)]
DELTA = 1e-5


def network() -> nn.Module:
    """Return the network of many papers on private training, with its first parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def pictures(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return the pictures of a split, from -1 to 1, and their classes."""
    images = idx_folder(folder, split)
    pixels = torch.tensor(images.pixels, dtype=torch.float32).reshape(-1, 1, 28, 28) / 255
    return (pixels - 0.5) / 0.5, torch.tensor(images.labels, dtype=torch.long)


def trained(plan: Plan, x: Tensor, y: Tensor, rate: float) -> tuple[nn.Module, Trainer]:
    """Return a network trained by a plan, and its trainer."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    loss = nn.CrossEntropyLoss(reduction="none")
    trainer = Trainer(model, optimizer, loss, plan, (x, y), seed=0)
    trainer.fit()
    return model, trainer


def right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of pictures whose class is told rightly."""
    with torch.no_grad():
        return round(float((model(x).argmax(1) == y).double().mean()), 4)


def main() -> None:
    """Run both plans, and write figures, model, plan and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=0.5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    x, y = pictures(options.data, "train")
    test = pictures(options.data, "test")
    budgets = Budgets.from_groups(GROUPS, len(y), DELTA, seed=0)
    settings = {"steps": options.steps, "expected_batch_size": options.batch, "clip_norm": 0.5}
    found: dict[str, object] = {"pictures": len(y), "held out": len(test[1])} | settings
    for name, strategy in {"individual": Sample(), "strictest for all": Uniform()}.items():
        plan = assign(budgets, strategy, **settings)
        model, trainer = trained(plan, x, y, options.rate)
        found[name] = {
            "right": right(model, *test),
            "noise": plan.stages[0].noise_stddev,
            "proved": trainer.proof is not None and trainer.proof.proved,
        }
        print(name, found[name], flush=True)
        if name == "individual":
            (options.out / "plan.json").write_text(plan.to_json())
            torch.save(model.state_dict(), options.out / "model.pt")
            report(plan).save(options.out / "report.html")
    (options.out / "figures.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
