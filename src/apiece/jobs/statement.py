"""Statement: what a run promises, in words and numbers, and what binds it to its files.

Digests show that files belong together, not who wrote them. Whoever can write all of them can make
others that agree; what a statement says of a training is its author's word.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from apiece._text import count_up, guess
from apiece._types import Json
from apiece.contract.explain import promised_right
from apiece.errors import DataError
from apiece.plan import Plan

if TYPE_CHECKING:
    import torch

    from apiece.jobs.trained import Level

FORMAT = "apiece privacy statement 4"
_MEANS = (
    "SHA-256 of the weights, and of the plan and of all else in the run folder under a salt that "
    "metrics.json has; they are compared whenever the model or its folder is loaded"
)
_WORD = (
    "its author's word: without a signature nothing shows who wrote this statement, nor that the "
    "training was as it says"
)
_REMEDY = "give it as apiece train wrote it"


@dataclass(frozen=True, slots=True)
class Bound:
    """What binds a run's statement, as its folder keeps it."""

    # weights: the digest of the model that is kept. config: that of config.toml, but for where the
    # folder lies; None of an estimator, which has none. salt: keeps the statement from telling
    # anything of plan and figures: whoever has not the folder cannot confirm a guess. head: the
    # ledger's number:digest after the release was recorded in it, None without one.

    weights: str
    config: str | None
    salt: str = field(repr=False)  # a secret
    head: str | None

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{32}", self.salt):
            raise DataError(f"salt = {self.salt!r}: must be 32 hexadecimal digits")

    @classmethod
    def of(
        cls,
        state: Mapping[str, torch.Tensor],
        config: Json | None,
        seed: int | None,
        head: str | None,
    ) -> Bound:
        """Return what binds a run with these weights and this config, as it is read back."""
        # seed: of an experiment; it makes the salt, so that the folder can be repeated.
        from apiece.training.charging import weights_digest

        digest = None if config is None else config_digest(config)
        return cls(weights_digest(state), digest, salt_of(seed), head)

    def said(self, plan: Json, metrics: Json) -> Json:
        """Return the statement's part, of plan.json and metrics.json as they are stored."""

        def under_salt(name: str, value: Json) -> str:
            content = name.encode() + b"\0" + _canonical(value)
            return hmac.new(bytes.fromhex(self.salt), content, hashlib.sha256).hexdigest()

        return {
            "weights": self.weights,
            "plan": under_salt("plan", plan),
            "run": under_salt("run", metrics),
            "ledger": self.head,
            "means": _MEANS,
            "signature": _WORD,
        }


def salt_of(seed: int | None) -> str:
    """Return a fresh salt, or that of an experiment's seed."""
    if seed is None:
        return secrets.token_hex(16)
    return hashlib.sha256(f"apiece salt {seed}".encode()).hexdigest()[:32]


def config_digest(config: Json) -> str:
    """Return the digest of a config as it was read, wherever its folder lies."""
    run = {name: value for name, value in config.get("run", {}).items() if name != "out"}
    return _digest({**config, "run": run})


def _digest(value: Json) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _canonical(value: Json) -> bytes:
    """Return a JSON value as bytes, whatever its spaces and the order of its names."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def as_text(statement: Json) -> str:
    """Return a statement as its file in a run folder holds it."""
    return json.dumps(statement, indent=2, ensure_ascii=False) + "\n"


def sealed(statement: Json) -> Json:
    """Return a statement with the digest of all that it says."""
    return {**statement, "digest": _digest(statement)}


def require_sealed(statement: object, where: str) -> Json:
    """Return a statement, or raise `DataError` where a word of it was changed, or it is of old."""
    if not isinstance(statement, dict):
        raise DataError(f"{where}: its statement is no object; {_REMEDY}")
    if statement.get("statement") != FORMAT:
        raise DataError(
            f"{where}: its statement is not in the format {FORMAT!r}, and so bound to nothing; "
            "read it with the apiece that wrote it, or train again"
        )
    said = {name: value for name, value in statement.items() if name != "digest"}
    if statement.get("digest") != _digest(said):
        raise DataError(f"{where}: its statement was changed after it was made; {_REMEDY}")
    if not isinstance(statement.get("bound_to"), dict):
        raise DataError(f"{where}: its statement is bound to nothing; {_REMEDY}")
    return statement


def require_same_digest(own: object, said: object, part: str, where: str) -> None:
    """Raise `DataError` where a part's digest is not that to which the statement is bound."""
    if own != said:
        raise DataError(f"{where}: {part} is not what its statement is bound to; {_REMEDY}")


UNITS = {
    "record": "one record: a row of the table, with all that it says",
    "person": "one person: all rows of one id, however many",
}
TRUSTED = (
    "the steward, who holds the data in the clear, makes the plan and runs the training",
    "the machine, its operating system and random generator, and the versions of software below",
)
NOT_TRUSTED = (
    "whoever receives the model, with any other knowledge and any computing power",
    "the other contributors: what they choose or send raises nobody else's epsilon",
)
COVERED = (
    "the parameters of the released model, the plan by which it was trained, and whatever is "
    "computed from them",
)
ALLOCATED = (
    "random allocation: each unit takes part in exactly k of the steps, k its group's number, one "
    "drawn in secret in each of k equal blocks"
)
# By method: what it is, how people come in, what an attacker may know, what is assumed of units.
WORDS = {
    "dp-sgd": (
        "DP-SGD: gradients clipped per unit, summed, and covered by Gaussian noise",
        "Poisson: each unit joins each step by its own secret coin",
        "an attacker who knows all other data, the plan, and the model after every step",
        "each unit's gradient depends on that unit alone, by this model's construction",
    ),
    "pate": (
        "PATE: teachers learn from the units' rows and vote on public rows; votes are counted, "
        "covered by Gaussian noise, and a student learns the class that comes out first",
        "none: each unit's rows go to teachers that its own secret coins choose",
        "an attacker who knows all other data, the plan, the public rows and every answer",
        "each unit's rows change the votes of its own teachers alone",
    ),
}


_TOLD = (
    "each level's Gaussian with its slack adds up with those of other results: mu squared to mu "
    "squared, slack to slack; the plan is made of public numbers, so these may be told"
)
_WITHHELD = (
    "the Gaussian that stands for each level, whose mu squared adds up, follows from how many "
    "people chose which level and is withheld; the steward has it from the plan, and a ledger "
    "charges it"
)


def statement_schema() -> Json:
    """Return the JSON schema of statements, which says what each field is.

    Example:
        >>> from apiece.jobs import statement_schema
        >>> statement_schema()["title"]
        'A privacy statement of apiece'
    """
    path = files("apiece.jobs") / "statement.schema.json"
    schema: Json = json.loads(path.read_text(encoding="utf-8"))
    return schema


def guarantee(
    plan: Plan, levels: tuple[Level, ...], no_limit_cap: float | None, *, counts_are_public: bool
) -> Json:
    """Return what is promised of each declared level, and of the plan what may be told."""
    of, runs = "the release of one model, chosen without looking at others", plan.runs_on_average
    if runs is not None:
        of = (
            f"the release of one model, the best of a random number of runs, {runs:g} on average; "
            "the promise holds with the choosing inside"
        )
    return {
        "definition": "individualized (epsilon, delta)-differential privacy: each has their own",
        "of": of,
        "levels": [_level(plan if counts_are_public else None, each) for each in levels],
        "levels_declared": bool(levels),
        "no_limit_cap": no_limit_cap,
        "verified": "before training and again when the run was read: each group's epsilon, an "
        "upper bound recomputed from the plan's own numbers, is at most what was asked",
        "composition": _TOLD if counts_are_public else _WITHHELD,
    }


def _level(plan: Plan | None, level: Level) -> Json:
    """Return what a level promises, and by a plan that may be told what that made of it."""
    right = promised_right(level.epsilon, level.delta)
    said: Json = {**asdict(level), "right_of_1000_at_most": right, "as_made_at_most": None,
                  "sentence": guess(right), "gaussian": None}  # fmt: skip
    if plan is None:
        return said
    groups = plan.budget_groups
    own = np.flatnonzero((groups.epsilon == level.epsilon) & (groups.delta == level.delta)).tolist()
    if not own:
        return said
    # Of groups with one budget (by an excess, say) the largest count and μ hold for all.
    said["gaussian"] = asdict(
        max((plan.gaussian(g) for g in own), key=lambda gaussian: gaussian.mu)
    )
    if (advantage := plan.measures.advantage) is not None:
        made = count_up((1 + float(advantage[own].max())) / 2)
        said |= {"as_made_at_most": made, "sentence": guess(made, right)}
    return said


def not_covered(*, models: int, charged: bool, method: str, searched: bool) -> Iterator[str]:
    """Yield what no ε of a run covers."""
    yield (
        "accuracy and errors on held-out people, in metrics.json and the internal report: without "
        "noise, and for the steward alone"
    )
    if models > 1:
        yield (
            f"a comparison: {models} models were trained on the same people; releasing more "
            "than one, or the best by looking, costs more than is promised"
        )
    yield (
        "other results from the same people: they add up; the ledger that this run was charged to "
        "keeps the sum, and where its policy renews budgets each protects the data of one period"
        if charged
        else "other results from the same people: they add up, and no ledger was charged"
    )
    if searched:
        yield "any other run of the search: its model, its score, and how many runs there were"
        yield "what else was tuned on these people, if it was: the search covers its own settings"
    else:
        yield "settings that were tuned on these people, if they were"
    yield "the number of people, and how many chose which budget: the plan takes them as public"
    yield "what is true of people in general, which a model tells of those who stay out too"
    if method == "pate":
        yield "the public rows: their features may show in the model"
    yield "the data before and beside the training: their collection, storage and access"
    yield "how long the training took and what memory it used, for who can watch the machine"


def assumptions(
    *, seeded: bool, key_kept: bool, method: str, unit: str, searched: bool
) -> Iterator[str]:
    """Yield what must be so for the promises to hold. key_kept: on disk, while the run went on."""
    if not seeded:
        key = "deleted, and no backup of it is kept" if key_kept else "never written down"
        yield f"the noise cannot be foreseen; its key was {key}"
    else:
        yield (
            "none of the promises holds for who knows the seed: this is an experiment, and its "
            "model must not be released"
        )
    yield WORDS[method][3]
    yield "ranges and categories come from a public schema, " + (
        "and so do the values that the search chose among: from no look at these people"
        if searched
        else "settings from no look at these people"
    )
    if unit == "person":
        yield "each person's rows carry that person's id"
    else:
        yield "each person has one row; with several, the promise is of a row and not of the person"
