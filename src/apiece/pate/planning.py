"""VotePlan: how many questions teachers are asked, and how their votes are covered with noise.

A question may first be checked: is the most frequent answer's count, with noise of its own, above
a threshold? Only then is it answered: by the class with the most votes, each count with noise. One
record with reach r changes each count by at most r, and the counts of two classes in opposite ways:
a check is a Gaussian mechanism of sensitivity r, an answer one of sensitivity √2·r. How often each
is done at most is fixed before the first vote, so that a record pays for the composition of that
many Gaussians, which is exact, whatever the votes are. Sources: Papernot et al. 2018 (GNMax and
Confident-GNMax); Boenisch et al. 2022; Smith and Thakurta 2022 (for questions that depend on
earlier answers); docs/mathematics.md, section 13.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apiece import _check
from apiece._types import Floats, Integers, Mask
from apiece.assignment.unspent import warn_of_shortfall
from apiece.budgets import BudgetGroups, Budgets
from apiece.errors import InfeasibleError, InputError
from apiece.filters.convert import gaussian_mu
from apiece.pate.strategies import Seats, Voters, find_voters
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import Reference, Stage

# Share of what a record allows that pays for checks; answers have the remainder.
CHECK_SHARE = 0.25
# Relative amount by which the noise is above what the budgets need.
_ROOM = 1e-9
# Columns of a stage by which a plan is compared with its votes.
_COLUMNS = ("sampling_probability", "clip_norm", "steps", "noise_stddev", "participation")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Phase:
    """Questions in which the same pools of teachers vote."""

    # How many are asked at most.
    questions: int
    # How many of them are answered at most.
    answers: int
    # (pools,) Whether each pool votes: until its records' budgets are spent.
    voting: Mask


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Noise:
    """The noise on counts of votes, and the threshold of a check.

    Attributes:
        answer: Standard deviation of the noise on each class's count when a question is answered.
        check: Standard deviation of the noise on the largest count when it is checked; None where
            nothing is checked.
        threshold: The share of all votes that the largest count must reach; None with `check`.

    Raises:
        InputError: For values out of bounds, and one of check and threshold without the other.

    Example:
        >>> from apiece.pate import Noise
        >>> Noise(answer=40.0).check is None
        True
    """

    answer: float
    check: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        answer = _check.positive("answer noise", self.answer)
        object.__setattr__(self, "answer", answer)
        if (self.check is None) != (self.threshold is None):
            raise InputError("check: give the noise of a check and its threshold together")
        if self.check is not None:
            check = _check.positive("check noise", self.check)
            share = _check.probability("threshold", self.threshold, low_open=True, high_open=True)
            object.__setattr__(self, "check", check)
            object.__setattr__(self, "threshold", share)


@dataclass(frozen=True, eq=False, kw_only=True)
class VotePlan:
    """How teachers vote, decided before they are trained: public numbers, and the plan they make.

    Attributes:
        strategy: Name of the strategy.
        seats: The pools of teachers, and where each group's records go.
        noise: Noise on the counts of votes.
        phases: Phases in their order; between two, pools leave whose records' budgets are spent.
        plan: Checks and answers as a verified plan of Gaussian mechanisms, bound to the people.

    Raises:
        InputError: Where the parts do not fit one another: each budget group has seats, and the
            stages of `plan` are what seats, noise and phases do.
        VerificationError: Where `plan` does not keep what everyone allows.

    Guarantee:
        All checks and answers of all phases in which a record's teachers vote, composed, keep its
        (ε, δ) under add/remove. It is recomputed from `plan` alone when it is made, and by `teach`
        before the first vote, together with the deal of rows to teachers.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.pate import plan_votes
        >>> asked = Budgets([1.0] * 500 + [3.0] * 500, 1e-5)
        >>> votes = plan_votes(asked, "weight", teachers=50, questions=100)
        >>> votes.seats.teachers.tolist(), votes.plan.verify(asked).ok
        ([25, 25], True)
    """

    strategy: str
    seats: Seats
    noise: Noise
    phases: tuple[Phase, ...]
    plan: BoundPlan = field(repr=False)

    def __post_init__(self) -> None:
        self.require()

    def require(self) -> None:
        """Raise unless the plan is of these votes and keeps what everyone allows.

        Raises:
            InputError: Where the parts do not fit one another.
            VerificationError: Where a record's own (ε, δ) or bound on the excess is not kept.
        """
        self.seats.require()
        groups = self.plan.budget_groups
        pools = (self.seats.teachers.size,)
        if self.seats.pool.size != len(groups):
            raise InputError(
                f"seats: for {self.seats.pool.size} groups, and the plan has {len(groups)}; make "
                "the plan again, with plan_votes"
            )
        if any(phase.voting.shape != pools for phase in self.phases):
            raise InputError("phases: voting must have one entry a pool; use plan_votes")
        # By numbers, stage by stage: a plan with other rates or noise is no plan of these votes.
        planned = _columns_of(self.plan.stages)
        expected = _columns_of(make_stages(groups, self.seats, self.noise, self.phases))
        if len(planned) != len(expected) or not all(map(np.array_equal, planned, expected)):
            raise InputError(
                "plan: its stages are not what these seats, noise and phases do; make the plan "
                "again, with plan_votes"
            )
        # Last: a plan of other votes may well keep everybody's budget.
        self.plan.require()

    @property
    def teachers(self) -> int:
        """How many teachers there are in all pools."""
        return int(self.seats.teachers.sum())

    @property
    def questions(self) -> int:
        """How many questions are asked at most."""
        return sum(phase.questions for phase in self.phases)

    @property
    def answers(self) -> int:
        """How many answers are given at most."""
        return sum(phase.answers for phase in self.phases)

    def hash(self) -> str:
        """Return a SHA-256 of all that is public of the plan."""
        seats = self.seats
        noise = self.noise
        # The plan's hash covers budgets and mechanisms: seats, threshold and phases are here alone.
        content = [
            self.plan.hash(),
            seats.pool.tolist(),
            seats.copies.tolist(),
            seats.teachers.tolist(),
            seats.weight.tolist(),
            [noise.answer, noise.check, noise.threshold],
            [[phase.questions, phase.answers, phase.voting.tolist()] for phase in self.phases],
        ]
        document = json.dumps(content).encode()
        return hashlib.sha256(document).hexdigest()

    @property
    def pool_of_teacher(self) -> Integers:
        """(teachers,) Pool of each teacher."""
        pools = np.arange(self.seats.teachers.size)
        return np.repeat(pools, self.seats.teachers)

    def weights(self, phase: Phase) -> Floats:
        """Return the weight of each teacher's vote in a phase, (teachers,); 0 of those who left.

        Args:
            phase: A phase of this plan.
        """
        weight = np.where(phase.voting, self.seats.weight, 0.0)
        return np.asarray(weight[self.pool_of_teacher])


def plan_votes(
    budgets: Budgets,
    strategy: str | Voters,
    *,
    teachers: int,
    questions: int,
    answers: int | None = None,
    threshold: float | None = None,
    noise: Noise | None = None,
    unit: str = "record",
    notes: tuple[str, ...] = (),
) -> VotePlan:
    """Return a verified plan of votes in which no record's budget is exceeded.

    Args:
        budgets: Budgets of the records, or of the persons.
        strategy: "uniform" (the strictest budget for all), "upsample", "weight", or a strategy.
        teachers: Number of teachers, at most that of the records.
        questions: How many public inputs the teachers are asked about, at most.
        answers: How many of them are answered at most; None for all. Needs a threshold.
        threshold: The share of all votes that the most frequent class must reach, with noise, for
            a question to be answered; None answers every question.
        noise: Noise on the counts; None for the least with which all questions can be asked. With
            noise that is given, pools leave as their records' budgets are spent, and fewer
            questions than `questions` may be asked.
        unit: "record" or "person".
        notes: Sentences for people that the plan holds.

    Raises:
        InputError: For values out of bounds, and more teachers than records.
        InfeasibleError: For a group that has no teacher, as with fewer teachers than groups that
            need their own, and noise with which nothing can be asked.
        VerificationError: Where a group's bound on the excess is not kept, or its (ε, δ).

    References:
        Papernot et al. 2018; Boenisch et al. 2022.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.pate import plan_votes
        >>> asked = Budgets([1.0] * 500 + [3.0] * 500, 1e-5)
        >>> votes = plan_votes(asked, "upsample", teachers=50, questions=100)
        >>> votes.seats.copies.tolist(), round(votes.noise.answer)
        ([1, 3], 59)
    """
    voters = find_voters(strategy)
    groups = budgets.groups
    teachers = _check.count("teachers", teachers)
    questions = _check.count("questions", questions)
    records = int(groups.records.sum())
    if not teachers <= records:
        raise InputError(
            f"teachers = {teachers}: there are {records} records or persons to teach them; give "
            f"at most {records}, and better a hundredth of it"
        )
    limit = questions if answers is None else _check.count("answers", answers)
    share = threshold if noise is None else noise.threshold
    if answers is not None and share is None:
        raise InputError(
            f"answers = {answers}: without a threshold every question is answered; give one, or "
            "leave answers out"
        )
    if not limit <= questions:
        raise InputError(f"answers = {answers}: must be at most questions = {questions}")
    mu = gaussian_mu(groups.epsilon, groups.delta)
    seats = voters.seats(groups, mu, teachers)
    # (pools,) μ² that each pool allows a record of reach 1: the least of its groups.
    allowed = np.full(seats.teachers.size, np.inf)
    np.minimum.at(allowed, seats.pool, (mu / seats.reach) ** 2)
    if noise is None:
        # Everybody votes to the end, so that the strictest pool decides.
        noise = _find_least_noise(float(allowed.min()), questions, limit, threshold)
        everybody = np.ones(allowed.size, dtype=bool)
        phases: tuple[Phase, ...] = (Phase(questions, limit, everybody),)
    elif threshold is not None:
        raise InputError("threshold: is part of the noise that is given; leave one of them out")
    else:
        phases = _split_into_phases(allowed, noise, questions, limit)
    stages = make_stages(groups, seats, noise, phases)
    note = (
        f"Votes of {int(seats.teachers.sum())} teachers: steps are checks and answers, and what "
        "stands as a clip norm is how far one record can move the votes that are counted."
    )
    # The mean sensitivity of an answer stands where a plan of gradients has its clip norm.
    total_reach = seats.reach @ groups.records
    mean_reach = np.sqrt(2.0) * total_reach / groups.records.sum()
    plan = Plan(
        strategy=voters.name,
        clip_norm=float(mean_reach),
        budget_groups=groups,
        stages=stages,
        reference=Reference(1.0, sum(stage.steps for stage in stages)),
        unit=unit,
        notes=(note, *notes),
    ).bind(budgets)
    warn_of_shortfall(plan)
    return VotePlan(strategy=voters.name, seats=seats, noise=noise, phases=phases, plan=plan)


def _columns_of(stages: tuple[Stage, ...]) -> list[Any]:
    """Return the numbers of stages, stage by stage."""
    return [getattr(stage, column) for stage in stages for column in _COLUMNS]


def _find_least_noise(
    allowed: float, questions: int, answers: int, threshold: float | None
) -> Noise:
    """Return the least noise with which questions and answers cost no more μ² than is allowed."""
    # n Gaussian mechanisms of sensitivity Δ and noise σ cost μ² = n (Δ/σ)²: Δ is √2 of an answer
    # and 1 of a check.
    room = (1 + _ROOM) / allowed
    if threshold is None:
        return Noise(answer=math.sqrt(2 * answers * room))
    return Noise(
        answer=math.sqrt(2 * answers * room / (1 - CHECK_SHARE)),
        check=math.sqrt(questions * room / CHECK_SHARE),
        threshold=threshold,
    )


def _split_into_phases(
    allowed: Floats, noise: Noise, questions: int, answers: int
) -> tuple[Phase, ...]:
    """Return the phases at whose ends pools leave, as their budgets are spent."""
    # A pool stays for so many questions that these, with a proportional number of answers rounded
    # up, cost no more than it allows.
    # μ² that an answer and a check cost a record of reach 1.
    answer_cost = 2 / noise.answer**2
    check_cost = 0.0 if noise.check is None else 1 / noise.check**2
    question_cost = (check_cost + answer_cost * answers / questions) * (1 + _ROOM)
    # Kept back for the answer by which a proportional number is rounded up.
    reserve = answer_cost if answers < questions else 0.0
    affordable = np.floor((allowed - reserve) / question_cost)
    # (pools,) After how many questions each pool leaves.
    last_questions = np.minimum(affordable, questions).astype(np.int64)
    if not last_questions.max() > 0:
        ratio = (question_cost + reserve) / allowed.max()
        raise InfeasibleError(
            f"answer noise = {noise.answer:g}: not one question can be asked within any budget; "
            f"give at least {noise.answer * math.sqrt(ratio):.4g}"
        )
    phases = []
    questions_before = 0
    answers_before = 0
    # Between two ends the same pools vote.
    for end in np.unique(last_questions[last_questions > 0]).tolist():
        # Rounded up: −(−a // b) is the least whole number that is at least a / b.
        answers_then = -(-end * answers // questions)
        phases.append(
            Phase(end - questions_before, answers_then - answers_before, last_questions >= end)
        )
        questions_before = end
        answers_before = answers_then
    return tuple(phases)


def make_stages(
    groups: BudgetGroups, seats: Seats, noise: Noise, phases: tuple[Phase, ...]
) -> tuple[Stage, ...]:
    """Return the Gaussian mechanisms: in each phase a stage of checks, one of answers."""
    stages = []
    for phase in phases:
        # Nothing is sampled: who votes takes part in each step.
        joins = phase.voting[seats.pool].astype(np.float64)
        size = float(joins @ groups.records)
        if noise.check is not None:
            stages.append(Stage(phase.questions, size, noise.check, joins, seats.reach))
        if phase.answers:
            # √2 is rounded up: an answer's sensitivity is not below the true one.
            reach = np.sqrt(2.0) * seats.reach * (1 + 2.0**-52)
            stages.append(Stage(phase.answers, size, noise.answer, joins, reach))
    return tuple(stages)
