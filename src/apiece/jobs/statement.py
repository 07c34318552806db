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
from typing import TYPE_CHECKING, Final

import numpy as np

from apiece._text import count_up, guess
from apiece._types import Json
from apiece.contract.explain import promised_right
from apiece.errors import DataError
from apiece.plan import Plan

if TYPE_CHECKING:
    import torch

    from apiece.jobs.trained import Level

# Changes with every field of a statement: one of another format is read by the apiece that wrote
# it.
FORMAT: Final = "apiece privacy statement 4"
# Bytes of a salt, which is written in hexadecimal digits.
_SALT_BYTES: Final = 16
# Sentences of a statement and of messages about one.
_MEANS: Final = (
    "SHA-256 of the weights, and of the plan and of all else in the run folder under a salt that "
    "metrics.json has; they are compared whenever the model or its folder is loaded"
)
_SIGNATURE: Final = (
    "its author's word: without a signature nothing shows who wrote this statement, nor that the "
    "training was as it says"
)
_REMEDY: Final = "give it as apiece train wrote it"


@dataclass(frozen=True, slots=True)
class Bound:
    """What binds a run's statement, as its folder keeps it."""

    # The digest of the model that the folder holds.
    weights: str
    # The digest of config.toml, but for where the folder lies; None of an estimator without one.
    config: str | None
    # A secret. It keeps the statement from telling anything of plan and figures: whoever has not
    # the folder cannot confirm a guess.
    salt: str = field(repr=False)
    # The ledger's number:digest after the release was recorded in it; None without a ledger.
    head: str | None

    def __post_init__(self) -> None:
        if not re.fullmatch(f"[0-9a-f]{{{2 * _SALT_BYTES}}}", self.salt):
            raise DataError(f"salt = {self.salt!r}: must be {2 * _SALT_BYTES} hexadecimal digits")

    @classmethod
    def of(
        cls,
        state: Mapping[str, torch.Tensor],
        config: Json | None,
        seed: int | None,
        head: str | None,
    ) -> Bound:
        """Return what binds a run with these weights and this config, as it is read back.

        The seed of an experiment makes the salt, so that the folder can be repeated.
        """
        from apiece.training.charging import weights_digest

        digest = None if config is None else digest_config(config)
        return cls(weights_digest(state), digest, choose_salt(seed), head)

    def list_digests(self, plan: Json, metrics: Json) -> Json:
        """Return the statement's part, of plan.json and metrics.json as they are stored."""
        return {
            "weights": self.weights,
            "plan": self._digest_with_salt("plan", plan),
            "run": self._digest_with_salt("run", metrics),
            "ledger": self.head,
            "means": _MEANS,
            "signature": _SIGNATURE,
        }

    def _digest_with_salt(self, name: str, value: Json) -> str:
        # The name keeps one file's digest from standing for the other's.
        content = name.encode() + b"\0" + _encode_canonically(value)
        key = bytes.fromhex(self.salt)
        return hmac.new(key, content, hashlib.sha256).hexdigest()


def choose_salt(seed: int | None) -> str:
    """Return a fresh salt, or that of an experiment's seed."""
    if seed is None:
        return secrets.token_hex(_SALT_BYTES)
    # Whoever has the seed of an experiment can take its noise off too: there is nothing left to
    # hide.
    digest = hashlib.sha256(f"apiece salt {seed}".encode())
    return digest.hexdigest()[: 2 * _SALT_BYTES]


def digest_config(config: Json) -> str:
    """Return the digest of a config as it was read, wherever its folder lies."""
    # A folder may be moved.
    run = {name: value for name, value in config.get("run", {}).items() if name != "out"}
    return _digest({**config, "run": run})


def _digest(value: Json) -> str:
    return hashlib.sha256(_encode_canonically(value)).hexdigest()


def _encode_canonically(value: Json) -> bytes:
    """Return a JSON value as bytes, whatever its spaces and the order of its names."""
    # Changing this changes every digest, and so refuses every stored statement.
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def to_text(statement: Json) -> str:
    """Return a statement as its file in a run folder holds it."""
    return json.dumps(statement, indent=2, ensure_ascii=False) + "\n"


def seal(statement: Json) -> Json:
    """Return a statement with the digest of all that it says."""
    return {**statement, "digest": _digest(statement)}


def require_sealed(statement: object, where: str) -> Json:
    """Return a statement; raise `DataError` where a word of it was changed, or it is of old."""
    if not isinstance(statement, dict):
        raise DataError(f"{where}: its statement is no object; {_REMEDY}")
    if statement.get("statement") != FORMAT:
        raise DataError(
            f"{where}: its statement is not in the format {FORMAT!r}, and so bound to nothing; "
            "read it with the apiece that wrote it, or train again"
        )
    # The digest is of all else, and so cannot be in what it is of.
    content = {name: value for name, value in statement.items() if name != "digest"}
    if statement.get("digest") != _digest(content):
        raise DataError(f"{where}: its statement was changed after it was made; {_REMEDY}")
    if not isinstance(statement.get("bound_to"), dict):
        raise DataError(f"{where}: its statement is bound to nothing; {_REMEDY}")
    return statement


def require_same_digest(computed: object, stated: object, part: str, where: str) -> None:
    """Raise `DataError` where a part's digest is not that to which the statement is bound."""
    if computed != stated:
        raise DataError(f"{where}: {part} is not what its statement is bound to; {_REMEDY}")


# Unit → what it is.
UNITS: Final = {
    "record": "one record: a row of the table, with all that it says",
    "person": "one person: all rows of one id, however many",
}
# Sentences of each statement: whom it trusts, against whom it holds, and what it covers.
TRUSTED: Final = (
    "the steward, who holds the data in the clear, makes the plan and runs the training",
    "the machine, its operating system and random generator, and the versions of software below",
)
NOT_TRUSTED: Final = (
    "whoever receives the model, with any other knowledge and any computing power",
    "the other contributors: what they choose or send raises nobody else's epsilon",
)
COVERED: Final = (
    "the parameters of the released model, the plan by which it was trained, and whatever is "
    "computed from them",
)
# How units take part under the strategy "allocate".
ALLOCATED: Final = (
    "random allocation: each unit takes part in exactly k of the steps, k its group's number, one "
    "drawn in secret in each of k equal blocks"
)
# How units take part where noise is correlated.
FIXED_STEPS: Final = (
    "none: each unit takes part in at most k steps, k its group's number, fixed beforehand whoever "
    "is there; the noise of a step takes part of the earlier noise back, and one Gaussian stands "
    "for the whole training"
)
# How units take part where noise is correlated and parts take turns.
TURNS: Final = (
    "by turns: each unit is in one part, dealt whoever is there, and joins each step of its part "
    "by its own secret coin; the noise of a step takes part of the earlier noise back"
)
# What is assumed where noise is correlated.
FIXED_ASSUMPTION: Final = (
    "which steps a unit takes part in does not depend on who is there: a unit that is left out "
    "leaves its steps empty, and moves no other"
)


@dataclass(frozen=True, slots=True)
class MethodText:
    """What a statement says of a training method."""

    name: str
    # How people come into a step.
    sampling: str
    # Whom the promise holds against: what an attacker may know.
    attacker: str
    # What is assumed of units.
    assumption: str


METHOD_TEXTS: Final = {
    "dp-sgd": MethodText(
        name="DP-SGD: gradients clipped per unit, summed, and covered by Gaussian noise",
        sampling="Poisson: each unit joins each step by its own secret coin",
        attacker="an attacker who knows all other data, the plan, and the model after every step",
        assumption="each unit's gradient depends on that unit alone, by this model's construction",
    ),
    "pate": MethodText(
        name=(
            "PATE: teachers learn from the units' rows and vote on public rows; votes are counted, "
            "covered by Gaussian noise, and a student learns the class that comes out first"
        ),
        sampling="none: each unit's rows go to teachers that its own secret coins choose",
        attacker=(
            "an attacker who knows all other data, the plan, the public rows and every answer"
        ),
        assumption="each unit's rows change the votes of its own teachers alone",
    ),
}
_GAUSSIAN_TOLD: Final = (
    "each level's Gaussian with its slack adds up with those of other results: mu squared to mu "
    "squared, slack to slack; the plan is made of public numbers, so these may be told"
)
_GAUSSIAN_WITHHELD: Final = (
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


def state_guarantee(
    plan: Plan, levels: tuple[Level, ...], no_limit_cap: float | None, *, counts_are_public: bool
) -> Json:
    """Return what is promised of each declared level, and of the plan what may be told."""
    release = "the release of one model, chosen without looking at others"
    runs = plan.runs_on_average
    if runs is not None:
        release = (
            f"the release of one model, the best of a random number of runs, {runs:g} on average; "
            "the promise holds with the choosing inside"
        )
    public_plan = plan if counts_are_public else None
    return {
        "definition": "individualized (epsilon, delta)-differential privacy: each has their own",
        "of": release,
        "levels": [_state_level(level, public_plan) for level in levels],
        "levels_declared": bool(levels),
        "no_limit_cap": no_limit_cap,
        "verified": "before training and again when the run was read: each group's epsilon, an "
        "upper bound recomputed from the plan's own numbers, is at most what was asked",
        "composition": _GAUSSIAN_TOLD if counts_are_public else _GAUSSIAN_WITHHELD,
    }


def _state_level(level: Level, plan: Plan | None) -> Json:
    """Return what a level promises, and by a plan that may be told what that made of it."""
    # By (ε, δ) alone, which is public; by the plan only where that may be told.
    promised = promised_right(level.epsilon, level.delta)
    content: Json = {
        **asdict(level),
        "right_of_1000_at_most": promised,
        "as_made_at_most": None,
        "sentence": guess(promised),
        "gaussian": None,
    }
    if plan is None:
        return content
    groups = plan.budget_groups
    is_of_level = (groups.epsilon == level.epsilon) & (groups.delta == level.delta)
    positions = np.flatnonzero(is_of_level).tolist()
    if not positions:
        return content
    # Of groups with one budget (by an excess, say) the largest count and μ hold for all.
    gaussians = [plan.gaussian(position) for position in positions]
    content["gaussian"] = asdict(max(gaussians, key=lambda gaussian: gaussian.mu))
    advantage = plan.measures.advantage
    if advantage is not None:
        actual = count_up((1 + float(advantage[positions].max())) / 2)
        content["as_made_at_most"] = actual
        content["sentence"] = guess(actual, promised)
    return content


def list_not_covered(*, models: int, charged: bool, method: str, searched: bool) -> Iterator[str]:
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
    if charged:
        yield (
            "other results from the same people: they add up; the ledger that this run was charged "
            "to keeps the sum, and where its policy renews budgets each protects the data of one "
            "period"
        )
    else:
        yield "other results from the same people: they add up, and no ledger was charged"
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


def list_assumptions(
    *,
    seeded: bool,
    key_stored: bool,
    method: str,
    unit: str,
    searched: bool,
    fixed_steps: bool = False,
) -> Iterator[str]:
    """Yield what must be so for the promises to hold.

    `key_stored` says whether the key of the noise was on disk while the run went on.
    """
    if not seeded:
        key = "deleted, and no backup of it is kept" if key_stored else "never written down"
        yield f"the noise cannot be foreseen; its key was {key}"
    else:
        yield (
            "none of the promises holds for who knows the seed: this is an experiment, and its "
            "model must not be released"
        )
    yield METHOD_TEXTS[method].assumption
    if fixed_steps:
        yield FIXED_ASSUMPTION
    if searched:
        yield (
            "ranges and categories come from a public schema, and so do the values that the search "
            "chose among: from no look at these people"
        )
    else:
        yield (
            "ranges and categories come from a public schema, settings from no look at these people"
        )
    if unit == "person":
        yield "each person's rows carry that person's id"
    else:
        yield "each person has one row; with several, the promise is of a row and not of the person"
