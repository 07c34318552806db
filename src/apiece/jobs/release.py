"""Whether a run is fit for release: a checklist, made from what the run itself tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from apiece._types import Json
from apiece.budgets import LARGE, SMALL_GROUP, cap_note
from apiece.jobs.trained import Facts, Trained

YES, NO, DECIDE = "yes", "no", "decide"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist.

    Attributes:
        name: What was looked at.
        verdict: "yes", "no" (the run must not be released), or "decide" (a person has to).
        says: A sentence.

    Example:
        >>> Check("largest ε", YES, "3").verdict
        'yes'
    """

    name: str
    verdict: str
    says: str


@dataclass(frozen=True, slots=True)
class Release:
    """The checklist of a run.

    Attributes:
        checks: In the order of the page.

    Example:
        >>> Release((Check("promises", YES, "kept"), Check("largest ε", DECIDE, "20"))).fit
        'decide'
    """

    checks: tuple[Check, ...]

    @property
    def fit(self) -> str:
        """The verdict on the run: "no" where one check is, else "decide" where one is, or "yes"."""
        verdicts = {check.verdict for check in self.checks}
        return next(verdict for verdict in (NO, DECIDE, YES) if verdict in verdicts)

    def to_dict(self) -> Json:
        """Return the checklist as JSON types."""
        return {"fit": self.fit, "checks": [asdict(check) for check in self.checks]}


def checklist(
    kept: Trained, data: Facts, *, seed: int | None, models: int, no_limit_cap: float | None
) -> Release:
    """Return the checklist of a run from its public values alone, so that anyone can repeat it.

    kept: of the strategy whose model is in the folder. models: how many were trained in all.
    """
    found = _checks(kept, data, seed, models, no_limit_cap)
    return Release(tuple(Check(*line) for line in found))


def _checks(
    kept: Trained, data: Facts, seed: int | None, models: int, cap: float | None
) -> Iterator[tuple[str, str, str]]:
    yield _promises(kept)
    yield _randomness(seed)
    yield _delta(kept)
    yield _epsilon(kept, cap)
    yield _models(models)
    yield _groups(kept)
    yield _held_out(data)


def _promises(kept: Trained) -> tuple[str, str, str]:
    if kept.plan.objections:
        return "promises", NO, kept.plan.objections[0]
    return "promises", YES, "every group spends at most the ε it asked for"


def _randomness(seed: int | None) -> tuple[str, str, str]:
    if seed is not None:
        says = f"it comes from seed {seed}, and whoever knows that takes the noise off; run without"
        return "randomness", NO, says
    return "randomness", YES, "from a key of the operating system’s cryptographic generator"


def _delta(kept: Trained) -> tuple[str, str, str]:
    records, delta = kept.plan.records, float(kept.plan.budget_groups.delta.max())
    if delta * records >= 1:
        says = f"δ = {delta:g} is not below 1/n = {1 / records:.3g}: it allows publishing a person"
        return "δ against 1/n", NO, says
    return "δ against 1/n", YES, f"δ = {delta:g} is below 1/n = {1 / records:.3g}"


def _epsilon(kept: Trained, cap: float | None) -> tuple[str, str, str]:
    largest = float(kept.plan.budget_groups.epsilon.max())
    note = "" if cap is None else f"; {cap_note(cap)}"
    if largest > LARGE:
        return "largest ε", DECIDE, f"{largest:g}, above {LARGE:g}: a weak promise{note}"
    return "largest ε", YES, f"{largest:g}{note}"


def _models(models: int) -> tuple[str, str, str]:
    if models > 1:
        says = f"{models} on the same people: release one chosen beforehand, or count them all"
        return "number of models", DECIDE, says
    return "number of models", YES, "1"


def _groups(kept: Trained) -> tuple[str, str, str]:
    sizes = kept.plan.budget_groups.records
    small = int((sizes < SMALL_GROUP).sum())
    if small:
        says = f"{small} of {sizes.size} have fewer than {SMALL_GROUP} people: do not publish them"
        return "groups too small to name", DECIDE, says
    return "groups too small to name", YES, f"none; the smallest has {int(sizes.min())} people"


def _held_out(data: Facts) -> tuple[str, str, str]:
    if not data.test_records:
        return "held-out figures", YES, "none were computed"
    if data.packaged:
        return "held-out figures", YES, "of public data"
    says = "accuracy is of held-out people, without noise: keep it as you keep their records"
    return "held-out figures", DECIDE, says
