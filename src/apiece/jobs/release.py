"""Whether a run is fit for release: a checklist, made from its metrics alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from apiece.budgets import LARGE, SMALL_GROUP, cap_note

YES, NO, DECIDE = "yes", "no", "decide"


def checklist(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return `fit` and `checks`, each with its name, verdict and a sentence.

    A verdict is "yes", "no" (the run must not be released), or "decide" (a person has to). fit is
    "no" where one check is, else "decide" where one is, else "yes". It looks at the metrics only,
    so whoever has metrics.json can make it again.
    """
    name = metrics["training"]["strategy"]
    plan = next(s["plan"] for s in metrics["strategies"] if s["strategy"] == name)
    checks = [
        {"name": check, "verdict": verdict, "says": says}
        for check, verdict, says in _checks(metrics, plan)
    ]
    verdicts = {check["verdict"] for check in checks}
    return {"fit": next(v for v in (NO, DECIDE, YES) if v in verdicts), "checks": checks}


def _checks(metrics: dict[str, Any], plan: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield _promises(plan)
    yield _randomness(metrics)
    yield _delta(metrics, plan)
    yield _epsilon(metrics, plan)
    yield _models(metrics)
    yield _groups(plan)
    yield _held_out(metrics)


def _promises(plan: dict[str, Any]) -> tuple[str, str, str]:
    if plan["objections"]:
        return "promises", NO, plan["objections"][0]
    return "promises", YES, "every group spends at most the ε it asked for"


def _randomness(metrics: dict[str, Any]) -> tuple[str, str, str]:
    seed = metrics["randomness"]["seed"]
    if seed is not None:
        says = f"it comes from seed {seed}, and whoever knows that takes the noise off; run without"
        return "randomness", NO, says
    return "randomness", YES, "from a key of the operating system’s cryptographic generator"


def _delta(metrics: dict[str, Any], plan: dict[str, Any]) -> tuple[str, str, str]:
    records = sum(group["records"] for group in plan["groups"])
    delta = max(group["delta"] for group in plan["groups"])
    if delta * records >= 1:
        says = f"δ = {delta:g} is not below 1/n = {1 / records:.3g}: it allows publishing a person"
        return "δ against 1/n", NO, says
    return "δ against 1/n", YES, f"δ = {delta:g} is below 1/n = {1 / records:.3g}"


def _epsilon(metrics: dict[str, Any], plan: dict[str, Any]) -> tuple[str, str, str]:
    largest = max(group["epsilon"] for group in plan["groups"])
    cap = metrics["no_limit_cap"]
    note = "" if cap is None else f"; {cap_note(cap)}"
    if largest > LARGE:
        return "largest ε", DECIDE, f"{largest:g}, above {LARGE:g}: a weak promise{note}"
    return "largest ε", YES, f"{largest:g}{note}"


def _models(metrics: dict[str, Any]) -> tuple[str, str, str]:
    models = metrics["all_models"]["models"]
    if models > 1:
        says = f"{models} on the same people: release one chosen beforehand, or count them all"
        return "number of models", DECIDE, says
    return "number of models", YES, "1"


def _groups(plan: dict[str, Any]) -> tuple[str, str, str]:
    sizes = [group["records"] for group in plan["groups"]]
    small = sum(size < SMALL_GROUP for size in sizes)
    if small:
        says = f"{small} of {len(sizes)} have fewer than {SMALL_GROUP} people: do not publish them"
        return "groups too small to name", DECIDE, says
    return "groups too small to name", YES, f"none; the smallest has {min(sizes)} people"


def _held_out(metrics: dict[str, Any]) -> tuple[str, str, str]:
    data = metrics["data"]
    if not data["test_records"]:
        return "held-out figures", YES, "none were computed"
    if data["packaged"]:
        return "held-out figures", YES, "of public data"
    says = "accuracy is of held-out people, without noise: keep it as you keep their records"
    return "held-out figures", DECIDE, says
