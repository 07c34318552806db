"""A plan that is read back is not believed: every field of every strategy's file is mutated.

What is loaded, bound to the people's budgets and accepted for a release must keep all that these
people were promised, by a reference and curves that this file works out from the people alone.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from apiece.accounting import excess, noise_multipliers, privacy_curve
from apiece.assignment import (
    AdaPDP,
    Allocate,
    Hybrid,
    JorgensenSampling,
    Rounds,
    Sample,
    Scale,
    Sequential,
    Strategy,
    Threshold,
    Uniform,
    assign,
)
from apiece.budgets import Budgets
from apiece.errors import ApieceError, DataError, InputError, VerificationError
from apiece.plan import BoundPlan, Plan, serial
from apiece.plan.parts import Reference
from apiece.plan.serial import Claims
from apiece.training import Trainer
from refusals import refused

BOUND, STEPS, BATCH, SIZE = 0.02, 6, 8.0, 40
EPSILON = np.where(np.arange(SIZE) < 16, 1.0, 3.0)
STRATEGIES: dict[str, Strategy] = {
    "uniform": Uniform(),
    "loosest": Uniform("loosest"),
    "scale": Scale(),
    "sample": Sample(),
    "allocate": Allocate(),
    "sample strictest": Sample("strictest"),
    "hybrid": Hybrid(),
    "threshold": Threshold(3.0),
    "sequential": Sequential(),
    "jorgensen": JorgensenSampling(),
    "rounds": Rounds(2),
    "adapdp": AdaPDP(2),
    "published rounds": Rounds(2, charging="joined"),
    "published adapdp": AdaPDP(2, charging="joined"),
}
Path = tuple[Any, ...]


def people(name: str) -> Budgets:
    bound = BOUND if name in ("hybrid", "scale") else None
    return Budgets(EPSILON, 1e-4, excess=bound)


def plan_of(name: str) -> Plan:
    settings = {"steps": STEPS, "expected_batch_size": BATCH, "clip_norm": 1.0}
    return assign(people(name), STRATEGIES[name], **settings)  # type: ignore[arg-type]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in the document, objects and lists too."""
    yield path
    inside: Any = value.items() if isinstance(value, dict) else ()
    inside = enumerate(value) if isinstance(value, list) else inside
    for key, part in inside:
        yield from leaves(part, (*path, key))


def others(value: Any) -> list[Any]:
    """What a value may be mutated to: of its kind, and of others."""
    odd: list[Any] = [
        None,
        "",
        "x",
        [],
        {},
        [[]],
        True,
        False,
        0,
        -1,
        10**18,
        10**400,
        1e308,
        5e-324,
    ]
    if isinstance(value, bool):
        return [not value, int(value), *odd]
    if isinstance(value, int | float):
        near = [value * f for f in (0.25, 0.5, 0.9, 1.1, 2, 4, -1)] + [value + 1, str(value)]
        return [*near, *odd]
    if isinstance(value, str):
        words = ["rdp", "pld", "gdp", "released", "exact", "average", "replace_one", "sample"]
        return [*words, *odd]
    if isinstance(value, list):
        return [value[:-1], value[1:], value[::-1], value * 2, {"0": value}, *odd]
    return [{**value, "more": 1}, [value], *odd] if isinstance(value, dict) else [1.0, *odd]


def at(data: Any, path: Path) -> Any:
    for key in path:
        data = data[key]
    return data


def put(data: Any, path: Path, value: Any) -> Any:
    """Return the document with one place changed."""
    if not path:
        return value
    made = copy.deepcopy(data)
    at(made, path[:-1])[path[-1]] = value
    return made


def mutants(data: Any) -> Iterator[tuple[str, Any]]:
    for path in leaves(data):
        for value in others(at(data, path)):
            yield f"{path} = {value!r:.40}", put(data, path, value)
        if path and isinstance(path[-1], str):
            made = copy.deepcopy(data)
            del at(made, path[:-1])[path[-1]]
            yield f"{path} deleted", made
    yield from forgeries(data)


def forgeries(data: Any) -> Iterator[tuple[str, Any]]:
    """Consistent lies: less noise with quotients and claims to match, promises taken away."""
    honest = {**copy.deepcopy(data), "objections": [], "releasable": True}
    yield "objections removed", honest
    for name, factor in (("epsilon", 4.0), ("delta", 100.0), ("epsilon_spent", 0.5)):
        made = copy.deepcopy(honest)
        for group in made["groups"]:
            group[name] *= factor
        yield f"{name} of all times {factor}", made
    made = copy.deepcopy(honest)
    for stage in made.get("stages", [made]):
        stage["noise_stddev"] /= 2
    for group in made["groups"]:
        for name in ("noise_multiplier", "epsilon_spent"):
            group[name] = group.get(name, 0) / 2 if name == "noise_multiplier" else group["epsilon"]
        if "noise_multiplier" not in data["groups"][0]:
            del group["noise_multiplier"]
    yield "half the noise, with claims to match", made
    for gone in ("worst_path", "excess_bound", "participation", "epsilon_spent", "excess"):
        made = copy.deepcopy(honest)
        for group in made["groups"]:
            group.pop(gone, None)
        for stage in made.get("stages", []):
            stage.pop(gone, None)
        yield f"{gone} gone everywhere", made
        made = copy.deepcopy(honest)
        made["groups"][-1].pop(gone, None)
        yield f"{gone} gone in one group", made
    made = copy.deepcopy(honest)
    for group in made["groups"]:
        if "excess_bound" in group:
            group["excess_bound"] = 1.0
    made["reference"]["sampling_probability"] = min(1.0, 3 * BATCH / SIZE)
    yield "reference moved, bounds lifted", made


def curve_of(plan: Plan, group: int) -> Any:
    return privacy_curve(plan.mechanism_for(group), method="pld")


def harm(plan: BoundPlan, budgets: Budgets) -> str | None:
    """How the plan breaks what these people were promised, by their own numbers; None: it keeps."""
    for g in range(len(plan.budget_groups)):
        who = plan.group_index == g
        asked, delta = budgets.epsilon[who].min(), budgets.delta[who].min()
        curve = curve_of(plan, g)
        if float(curve.epsilon(delta).upper) > asked * (1 + 1e-6):
            return f"group {g} spends more than {asked}"
        if budgets.excess is not None:
            z = noise_multipliers(
                epsilon=asked, delta=delta, sampling_probability=BATCH / SIZE, steps=STEPS
            )
            promised = privacy_curve(Reference(BATCH / SIZE, STEPS).mechanism(float(z)))
            if float(excess(promised, curve).forward.upper) > BOUND + 1e-6:
                return f"group {g} is more vulnerable than promised"
    return None


def outcome(document: Any, name: str) -> str:
    """What happens to a document on its way to a release: refused where, or run, or harm."""
    budgets = people(name)
    try:
        bound = Plan.from_json(json.dumps(document)).bind(budgets)
        bound.require()
    except ApieceError as error:
        return "refused" if len(str(error)) < 500 and "\n" not in str(error) else str(error)
    return harm(bound, budgets) or "kept"


def search(name: str, generator: np.random.Generator, count: int) -> dict[str, int]:
    """Return what `count` drawn mutants, and all forgeries, came to; fail on the first that harms.

    There are 1,000 to 2,000 mutants a strategy.
    """
    data = json.loads(plan_of(name).to_json())
    every = list(mutants(data))
    last = len(list(forgeries(data)))
    drawn = generator.choice(len(every) - last, count, replace=False)
    every = [every[i] for i in drawn] + every[-last:]
    found = {"refused": 0, "kept": 0}
    for what, document in every:
        result = outcome(document, name)
        assert result in found, f"{name}: {what}: {result}"
        found[result] += 1
    return found


@pytest.mark.parametrize("name", ["uniform", "loosest", "published rounds"])
def test_a_mutated_plan_is_refused_or_keeps_every_promise(name: str) -> None:
    found = search(name, np.random.default_rng(5), 30)
    assert found["refused"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_mutations_of_every_strategy(name: str) -> None:
    found = search(name, np.random.default_rng(6), 100)
    assert found["refused"] > 60


@pytest.mark.parametrize("name", ["weak", "public"])
def test_a_file_does_not_choose_what_it_is_measured_against(name: str) -> None:
    """Beside a rate of their own, those whom Sample takes more often look no more vulnerable."""
    labels = np.where(EPSILON < 2, "strict", name)
    asked = Budgets(EPSILON, 1e-4, labels=labels)
    plan = assign(asked, Sample(), steps=1, expected_batch_size=BATCH, clip_norm=1.0)
    made = json.loads(plan.to_json())
    bound = made["groups"][-1]["excess_forward"] / 2
    moved = made["groups"][-1]["sampling_probability"] if name == "weak" else BATCH / 16
    made["reference"]["sampling_probability"] = moved
    for group in made["groups"]:
        group["excess_bound"] = bound if group["epsilon"] > 2 or name == "weak" else 1.0
        for claim in ("excess", "excess_forward", "excess_backward"):
            del group[claim]
    if name == "weak":
        with refused(DataError, "reference", 1, 0.2):
            Plan.from_dict(made)
    bounds = [group["excess_bound"] for group in made["groups"]]
    people = Budgets(EPSILON, 1e-4, excess=np.where(EPSILON < 2, *bounds))
    if name == "weak":  # such a reference, if it is believed, hides the harm
        groups = replace(plan.budget_groups, excess=np.array(bounds))
        own = replace(plan.public(), budget_groups=groups, reference=Reference(moved, 1))
        own.bind(people).require()
    else:
        with pytest.raises(InputError, match="do not fit"):
            Plan.from_dict(made).bind(people)


def test_people_are_not_bound_to_a_group_that_is_public() -> None:
    asked = Budgets(EPSILON, 1e-4)
    named = Budgets(EPSILON, 1e-4, labels=np.where(EPSILON < 2, "strict", "public"))
    settings = {"steps": STEPS, "expected_batch_size": BATCH, "clip_norm": 1.0}
    for one, other in ((asked, named), (named, asked)):
        plan = assign(one, Scale(), **settings).public()  # type: ignore[arg-type]
        assert plan.bind(one).records == SIZE
        with pytest.raises(InputError, match="do not fit"):
            plan.bind(other)


def test_the_harness_finds_what_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: files believed as they are, as they once were."""
    monkeypatch.setattr(Claims, "require", lambda self, *plan: None)
    monkeypatch.setattr(Plan, "require", lambda self: None)
    with pytest.raises(AssertionError, match="spends more"):
        search("loosest", np.random.default_rng(5), 0)


@pytest.mark.parametrize("name", ["sample", "scale", "rounds"])
def test_what_was_written_is_read_and_runs(name: str) -> None:
    plan = plan_of(name)
    back = Plan.from_json(plan.to_json())
    assert back.to_json() == plan.to_json()
    back.bind(people(name)).require()
    bare = Plan.from_dict(serial.describe_parameters(plan))
    assert bare.hash() == plan.hash()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"groups": ' * 50_000,
        '{"strategy": "sample", "strategy": "scale"}',
        '{"steps": NaN}',
        '{"steps": Infinity}',
        '{"steps": 1e400}',
        '{"steps": ' + "9" * 10_000 + "}",
        '"\\ud800"',
        "null",
        "{}x",
    ],
    ids=lambda text: text[:20],
)
def test_text_of_no_or_two_readings_is_a_typed_error(text: str) -> None:
    with pytest.raises(DataError) as caught:
        Plan.from_json(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_key_given_twice_is_refused_wherever_it_is() -> None:
    text = plan_of("scale").to_json()
    for key in ("noise_stddev", "epsilon", "sampling_probability", "objections"):
        twice = text.replace(f'"{key}": ', f'"{key}": 1.0, "{key}": ', 1)
        with pytest.raises(DataError, match=f"'{key}' occurs twice"):
            Plan.from_json(twice)


def trainer(plan: Plan, seed: int | None) -> Trainer:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.zeros(SIZE, 2), torch.zeros(SIZE, 1)
    loss = lambda outputs, targets: ((outputs - targets) ** 2).sum(1)  # noqa: E731
    return Trainer(model, optimizer, loss, plan, data, seed=seed)


def test_the_trainer_verifies_again_before_a_release() -> None:
    loosest = plan_of("loosest")
    trainer(loosest, seed=0)
    with pytest.raises(InputError, match="not fit for a release"):
        trainer(loosest, seed=None)
    with pytest.raises(VerificationError, match="spends epsilon"):
        trainer(replace(loosest, objections=()), seed=None)
    # Δ̄: Sample pays no heed to it, so its plan must not be released under such a promise
    bounded = Budgets(np.repeat([0.3, 2.0], [SIZE - 4, 4]), 1e-6, excess=1e-3)
    made = assign(bounded, Sample(), steps=20, expected_batch_size=BATCH, clip_norm=1.0)
    trainer(made, seed=0)
    with pytest.raises(VerificationError, match="forward excess"):
        trainer(made, seed=None)
    scale = assign(bounded, Scale(), steps=STEPS, expected_batch_size=BATCH, clip_norm=1.0)
    trainer(scale, seed=None)


def test_binding_compares_the_bounds_too() -> None:
    plan = plan_of("scale")
    for excess_bound in (None, BOUND / 2, 1.0):
        with pytest.raises(InputError, match="do not fit"):
            plan.bind(Budgets(EPSILON, 1e-4, excess=excess_bound))
