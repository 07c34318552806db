"""Papers of a language model with adapters: its run, its statement, its card and its folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from apiece._lazy import require
from apiece._version import __version__
from apiece.errors import StateError
from apiece.jobs.prepared import RunFolder, refuse_used
from apiece.jobs.results import METRICS, PLAN, REPORT, STATEMENT, Run, statement_of
from apiece.jobs.running import list_versions
from apiece.jobs.statement import Bound, to_text
from apiece.jobs.trained import TOKENS, Asked, Facts, Trained, name_groups, read_levels
from apiece.plan import Plan
from apiece.recipes import LanguageRecipe
from apiece.reporting import report
from apiece.reporting.papers import card
from apiece.training.charging import weights_digest

# The card's file, as Hugging Face reads it.
CARD = "README.md"


def describe_language_model(
    recipe: LanguageRecipe,
    plan: Plan,
    adapted: Any,
    *,
    seed: int | None,
    source: str,
    levels: Asked = (),
    analysis: str | None = None,
    purpose: str | None = None,
    controller: str | None = None,
    contact: str | None = None,
    valid_until: str | None = None,
) -> Run:
    """Return the run of adapters that a recipe has trained, as `apiece.report` takes it.

    Args:
        recipe: Whose `train` made them.
        plan: The plan that they were trained by.
        adapted: The model with the adapters, of `peft`.
        seed: As it was given to `train`.
        source: Where the texts are from, as the report says it.
        levels: The budgets that authors could choose from; none where they were not declared.
        analysis: Name of the training in the ledger that paid; None without one.
        purpose: What the model is for.
        controller: Who answers for the texts.
        contact: Whom to ask.
        valid_until: The last day on which the steward stands by the statement.

    Raises:
        InputError: For levels without a group's budget.

    Guarantee:
        It is made of public numbers, of the plan and of the adapters: of no text.
    """
    offered = read_levels(levels, plan)
    settings = {
        "batch_size": plan.expected_batch_size,
        "steps": plan.steps,
        "clip_norm": recipe.clip_norm,
        "learning_rate": recipe.learning_rate,
        "momentum": 0.0,
    }
    seeds = None if seed is None else (seed,)
    # All tokens of the vocabulary are the classes of a prediction.
    vocabulary = adapted.get_base_model().lm_head.weight.shape[0]
    return Run(
        version=__version__,
        name="LanguageRecipe",
        data=Facts(
            source=f"{source}, by {recipe.public_data}",
            packaged=False,
            label=f"next token, by adapters of {recipe.public_data}, which no promise covers",
            classes=(f"{vocabulary:,} tokens",),
            features=recipe.length,
            schema=TOKENS,
            training_records=plan.records,
            test_records=0,
            commonest_class_share=None,
            simulated_budgets=False,
            unit=plan.unit,
        ),
        strategy=plan.strategy,
        hidden=(),
        analysis=analysis,
        no_limit_cap=None,
        seed=seed,
        strategies=(Trained(plan.strategy, name_groups(offered, plan), settings, seeds, (), 0.0),),
        models=1,
        totals=(),
        rows_per_person=recipe.rows_per_author,
        purpose=purpose,
        controller=controller,
        contact=contact,
        valid_until=valid_until,
        finished=time.strftime("%Y-%m-%d", time.gmtime()),
        levels=offered,
        versions=list_versions(),
        bound=Bound.of(_trained_state(adapted), None, seed, None),
    )


def save_language_model(run: Run, adapted: Any, folder: str | Path) -> Path:
    """Return the folder, new or empty before, with the adapters and their papers in it.

    adapter_model.safetensors, adapter_config.json, README.md (the card) and statement.json may be
    given away; plan.json, metrics.json and report.html are for the steward.
    `peft.PeftModel.from_pretrained` reads the adapters onto the public model.

    Args:
        run: As `describe_language_model` made it.
        adapted: The model that it describes.
        folder: Path of the folder.

    Raises:
        DataError: For a folder that is used or cannot be written to.
        StateError: For a model that was changed after the run was described.
    """
    require("language", "peft")
    # The digest covers both factors of the adapters, the random one as well.
    if run.bound is None or weights_digest(_trained_state(adapted)) != run.bound.weights:
        raise StateError(
            "adapted: was changed after it was described; give describe_language_model this one"
        )
    refuse_used(Path(folder))
    statement = statement_of(run)
    files = RunFolder(Path(folder))
    adapted.save_pretrained(files.path, safe_serialization=True, save_embedding_layers=False)
    # peft writes a card of its own.
    (files.path / CARD).unlink(missing_ok=True)
    files.write(CARD, card(statement))
    files.write(PLAN, run.kept.plan.to_json(indent=2) + "\n")
    files.write(STATEMENT, to_text(statement))
    files.write(METRICS, run.to_json(indent=2) + "\n")
    files.write(REPORT, report(run).html)
    return files.path


def _trained_state(adapted: Any) -> dict[str, Any]:
    """Return the adapters' parameters by name: both factors, of which one is random."""
    return {name: value for name, value in adapted.state_dict().items() if "lora_" in name}
