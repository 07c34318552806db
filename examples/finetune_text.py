"""Fine-tune a small text model with a budget for every text, to the end, and report on it.

The texts are the docstrings that come with libraries: no download. An encoder is trained without
privacy on those of public libraries (numpy, networkx, sympy); then it learns, privately, to tell
those of scipy, scikit-learn and pandas apart, each of which has a budget of its own: first the
head, then the encoder too.

python examples/finetune_text.py --out runs/text
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from apiece import Budgets, Plan, Sample, Trainer, Uniform, assign, report

WORDS, LENGTH, WIDTH = 4096, 48, 48
PUBLIC, PRIVATE = ("numpy", "networkx", "sympy"), ("scipy", "sklearn", "pandas")
GROUPS = [("strict", 1.0, 0.34), ("medium", 2.0, 0.43), ("weak", 8.0, 0.23)]
DELTA = 1e-5


def docstrings(library: str) -> Iterator[str]:
    """Yield the distinct docstrings of a library's functions and classes, tests left out."""
    place = importlib.util.find_spec(library)
    assert place is not None
    seen: set[str] = set()
    for path in sorted(Path(str(place.origin)).parent.rglob("*.py")):
        if "test" in str(path.relative_to(path.anchor)).split(library, 1)[1]:
            continue
        for node in ast.walk(ast.parse(path.read_text(errors="replace"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = ast.get_docstring(node) or ""
                if len(text.split()) > 12 and text not in seen:
                    seen.add(text)
                    yield text


def tokens(text: str) -> list[int]:
    """Return the words of a text as numbers from 1 on, by a public hash; names of libraries go."""
    words = re.findall(r"[a-z]+", text.lower())
    kept = [word for word in words if word not in (*PUBLIC, *PRIVATE, "scikit", "np", "pd", "nx")]
    found = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in kept[:LENGTH]]
    return found + [0] * (LENGTH - len(found))


def read(libraries: tuple[str, ...], most: int) -> tuple[Tensor, Tensor]:
    """Return the texts of some libraries as rows of numbers, and which library each is of."""
    draw = torch.Generator().manual_seed(0)
    rows, labels = [], []
    for label, library in enumerate(libraries):
        texts = torch.tensor([tokens(text) for text in docstrings(library)])
        some = texts[torch.randperm(len(texts), generator=draw)[:most]]
        rows.append(some)
        labels.append(torch.full((len(some),), label))
    order = torch.randperm(sum(map(len, rows)), generator=draw)
    return torch.cat(rows)[order], torch.cat(labels)[order]


class Reader(nn.Module):
    """A transformer over words, and a head on the mean of what it makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, texts: Tensor) -> Tensor:
        """Return the scores of the classes, (B, 3)."""
        empty = texts == 0
        h = self.words(texts) + self.places(torch.arange(LENGTH))
        h = self.body(h, src_key_padding_mask=empty)
        seen = (~empty).unsqueeze(2).to(h.dtype)
        return self.head((h * seen).sum(1) / seen.sum(1))


def pretrained(epochs: int, most: int) -> Reader:
    """Return a reader trained on public texts, with a new head."""
    torch.manual_seed(0)
    model, (texts, labels) = Reader(), read(PUBLIC, most)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(epochs):
        for some in torch.randperm(len(texts)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(texts[some]), labels[some]).backward()
            optimizer.step()
    model.head.reset_parameters()
    return model


def tuned(start: Reader, plan: Plan, texts: Tensor, labels: Tensor) -> tuple[Reader, Trainer]:
    """Return the reader fine-tuned by a plan, its head first."""
    model = Reader()
    model.load_state_dict(start.state_dict())
    trainer = Trainer(
        model,
        torch.optim.AdamW(model.parameters(), 2e-3),
        nn.CrossEntropyLoss(reduction="none"),
        plan,
        (texts, labels),
        seed=0,
        unfreeze={0: ["head"], plan.steps // 4: ["head", "body", "words"]},
    )
    trainer.fit()
    return model, trainer


def right(model: Reader, texts: Tensor, labels: Tensor) -> float:
    """Return the share of texts whose library is told rightly."""
    with torch.no_grad():
        return round(float((model.eval()(texts).argmax(1) == labels).double().mean()), 4)


def main() -> None:
    """Run both plans, and write figures, model, plan and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--texts", type=int, default=2000, help="of each library, at most")
    parser.add_argument("--epochs", type=int, default=4, help="on the public texts")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start = pretrained(options.epochs, options.texts)
    texts, labels = read(PRIVATE, options.texts)
    held = len(texts) // 5
    train, test = slice(held, None), slice(held)
    size = len(texts) - held
    budgets = Budgets.from_groups(GROUPS, size, DELTA, seed=0)
    found: dict[str, object] = {"texts": size, "held out": held, "steps": options.steps}
    batch = min(256, size // 4)
    settings = {"steps": options.steps, "expected_batch_size": batch, "clip_norm": 1.0}
    for name, strategy in {"individual": Sample(), "strictest for all": Uniform()}.items():
        plan = assign(budgets, strategy, **settings)
        model, trainer = tuned(start, plan, texts[train], labels[train])
        found[name] = {
            "right": right(model, texts[test], labels[test]),
            "right before": right(start, texts[test], labels[test]),
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
