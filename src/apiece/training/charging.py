"""Charging a training to a ledger before its first step, and leave to release its model."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from apiece import _check
from apiece._types import AnyArray, Floats, Json, Mask
from apiece.errors import AnalysisError, InputError, StateError
from apiece.mechanisms import Gaussian
from apiece.plan import BoundPlan, Plan
from apiece.training.identity import bytes_of

if TYPE_CHECKING:
    from apiece.ledger import Ledger

# More than sums of μ² in doubles are rounded down by, as a share.
_ROUNDING_SHARE = 2.0**-40


@dataclass(slots=True, eq=False)
class TrainingCharge:
    """Everyone's payment for a training: who may take part, and the leave to release its model.

    Make one with `charge_training`, before the first step.

    Attributes:
        ledger: The ledger that was charged.
        analysis_id: The training's name in it.
        included: (n,) True where a record can pay, in the order of the plan, for
            `Trainer(included=)`. Data about people: not for logs.
        ids: (n,) The records' ids, of the ledger's kind, in the order of the plan.
        parts: The training in parts that are paid one after the other, where steps at which it may
            stop were declared; None where all is paid at once.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger import Ledger
        >>> from apiece.training import charge_training
        >>> budgets = Budgets([1.0, 3.0], 1e-5, ids=["ann", "bob"])
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=1, clip_norm=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", plan.ids, 9.0, 1e-5)
        ...     charge = charge_training(ledger, "model 1", plan)
        ...     charge.release({"weight": torch.ones(2)})[:8], charge.withdrawn().tolist()
        ('41bfdf6d', [False, False])
    """

    ledger: Ledger
    analysis_id: str
    included: Mask = field(repr=False)
    ids: AnyArray = field(repr=False)
    parts: PaidParts | None = field(default=None, repr=False)
    # The last look into the ledger: seconds of the monotonic clock (-1 before the first), number of
    # the ledger's head and day of the year at that time, and who had withdrawn.
    _look: tuple[float, tuple[int, int], Mask] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        nobody = np.zeros(self.included.size, dtype=bool)
        self._look = (-1.0, (-1, 0), nobody)

    def withdrawn(self) -> Mask:
        """Return who has withdrawn by now, (n,), for `Trainer(withdrawn=)`; look once a second."""
        # Between two looks the last answer stands, for a second at most.
        seconds, version, mask = self._look
        if time.monotonic() - seconds >= 1 or seconds < 0:
            # A consent ends with a day, so that the day is a part of the ledger's state.
            head = self.ledger.head()
            current = (head.number, time.gmtime().tm_yday)
            if current != version:
                # Asked only when the ledger or the day has changed.
                mask = self.ledger.withdrawn(self.ids)
            self._look = (time.monotonic(), current, mask)
        # Who could not pay for a later part is in no further batch either.
        if self.parts is not None:
            mask = mask | ~self.parts.paying
        return mask

    def paid_steps(self) -> int | None:
        """Return how many steps are paid for, for `Trainer(paid_steps=)`; None for all."""
        return None if self.parts is None else self.parts.steps

    def extend(self) -> int:
        """Charge for the steps up to the next declared stop.

        Who cannot pay for them is in no further batch, and pays for none. Repeated after a kill it
        charges nothing again.

        Returns:
            The number of steps that are then paid for.

        Raises:
            AnalysisError: Where a model was released already: then nothing may be added to it.
            StateError: Where all steps are paid for.
        """
        if self.parts is None:
            raise StateError("extend: all steps are paid for; the training declared no stops")
        if self.ledger.status(self.analysis_id) == "committed":
            raise AnalysisError(
                f"analysis {self.analysis_id!r}: its model was released, and a training that goes "
                "on would be another; train under a new id"
            )
        return self.parts.extend(self.ledger, self.ids)

    def release(self, state: Mapping[str, torch.Tensor]) -> str:
        """Record that the model with this `state_dict` goes out; return its digest.

        Call it before anyone sees the model, or figures made from it. Repeated with the same
        parameters it returns the same.

        Args:
            state: `model.state_dict()`.

        Returns:
            The SHA-256 of the parameters.

        Raises:
            AnalysisError: Where another model went out under this analysis id: then this one must
                not.
            InputError: For a value that is not a tensor.
        """
        digest = weights_digest(state)
        # A commit that is repeated returns what the first one recorded.
        recorded = self.ledger.commit(self.analysis_id, {"model": digest})
        if recorded != {"model": digest}:
            raise AnalysisError(
                f"analysis {self.analysis_id!r}: another model was released under this id, and "
                "one charge pays for one; discard this model, or train it under a new id"
            )
        if self.parts is not None:
            for name in self.parts.paid_names:
                self.ledger.commit(name, {"model": digest})
        return digest


@dataclass(slots=True, eq=False)
class PaidParts:
    """A training whose steps are paid in parts, each before its first step.

    It may stop after any of the declared steps; what it has not begun is charged to nobody. Each
    person meets one Gaussian that grows step by step, and a part costs what it adds to μ². The sum
    is what the steps so far cost, so that stopping by what was seen is a Gaussian filter's stop.

    names: of each part's analysis in the ledger. ends: the steps after which they stop. losses:
    (parts, n) μ² that each adds, rounded up. terms: those of the training.
    """

    names: tuple[str, ...]
    ends: tuple[int, ...]
    losses: Floats = field(repr=False)
    terms: Json = field(repr=False)
    # Parts that are paid, and who has paid for all of these, (n,).
    paid: int = 0
    paying: Mask = field(default_factory=lambda: np.zeros(0, dtype=bool), repr=False)

    @property
    def steps(self) -> int:
        """How many steps are paid for."""
        return self.ends[self.paid - 1] if self.paid else 0

    @property
    def paid_names(self) -> tuple[str, ...]:
        """The names of the parts that are paid."""
        return self.names[: self.paid]

    def extend(self, ledger: Ledger, ids: AnyArray, *, committed: bool = False) -> int:
        """Charge for the next part all who paid for those before; return the steps paid for.

        committed: the model was released, so that who paid is only read.
        """
        from apiece.filters import Costs

        if self.paid == len(self.names):
            raise StateError(f"extend: all {self.steps} steps are paid for")
        name = self.names[self.paid]
        if not self.paid:
            # Nobody is left out before the first part.
            self.paying = np.ones(ids.size, dtype=bool)
        if not committed:
            # Only who has paid for all parts before is asked for the next.
            asked = ids[self.paying]
            costs = Costs.fixed(self.losses[self.paid][self.paying])
            ledger.reserve_costs(name, asked, costs, terms=self.terms)
        # Read back from the ledger, which decides: also for a charge that was made before a kill.
        parts = list(ledger.admitted(name, withdrawn=True))
        admitted = np.concatenate(parts) if parts else np.zeros(0)
        self.paying = self.paying & np.isin(ids, admitted)
        self.paid += 1
        return self.steps


def charge_training(
    ledger: Ledger,
    analysis_id: str,
    plan: Plan,
    *others: Plan,
    terms: object = None,
    resumed: bool = False,
    stops: Sequence[int] = (),
) -> TrainingCharge:
    """Charge everyone in the plan for all of its steps, durably, and return who may take part.

    A person whose account cannot bear the whole plan pays nothing and is left out. The plan stays
    as it is, so that neither noise nor rates tell how many were left out.

    Args:
        ledger: With an account for everyone in the plan.
        analysis_id: Name of this training, and of no other.
        plan: With the ids of its records; texts of whole numbers suit a ledger of numbers.
        *others: Further plans for the same records, trained in the same job; a plan counts as often
            as it is given.
        terms: Further terms that are fixed in public, as in `reserve_plan`.
        resumed: The run goes on, so that its model may have been released already, and the last
            files not written.
        stops: Steps after which the training may stop, declared beforehand, of a plan with fixed
            steps. People then pay for the steps up to the first, and for those up to the next when
            `TrainingCharge.extend` says so; what is not begun is charged to nobody. They are a part
            of the terms.

    Returns:
        Who may take part, and the leave to release one model.

    Raises:
        AnalysisError: Where a model was released under this id by another run, or the id stands for
            another plan, other people or other terms, or nobody's account can bear the plan.
        DataError: For a person without an account.
        InputError: For a plan without ids, texts that are not numbers in a ledger of numbers, and
            stops that do not rise within the steps, or of a plan whose steps are drawn.

    Guarantee:
        Each person's spending covers all models that the job can release, before its first step. A
        job that was killed and is started again, or resumed, under the same id is not charged
        again; what a killed job has shown of itself must not be released beside it. Charges are
        never given back: without `stops` a training that ends early has paid for all of it.

    Example:
        >>> import tempfile
        >>> from apiece.assignment import Sample, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger import Ledger
        >>> from apiece.training import charge_training
        >>> budgets = Budgets([1.0, 2.0, 2.0], 1e-6, ids=["ann", "bob", "eve"])
        >>> plan = assign(budgets, Sample(), steps=5, expected_batch_size=1, clip_norm=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", plan.ids, [0.1, 3.0, 3.0], 1e-5)
        ...     charge_training(ledger, "model 1", plan).included.tolist()
        [False, True, True]
    """
    from apiece.ledger.plans import reserve_plan, training_terms

    plans = [_convert_ids(ledger, plan) for plan in (plan, *others)]
    if stops:
        if others:
            raise InputError("stops: are for a job of one model; leave out the other plans")
        return _charge_parts(ledger, analysis_id, plans[0], stops, terms, resumed=resumed)
    training = training_terms(*plans, terms=terms)
    # A run that was released and is only resumed to write its files pays nothing again.
    if not (resumed and ledger.status(analysis_id, training) == "committed"):
        reserve_plan(ledger, analysis_id, *plans, terms=terms)
    parts = list(ledger.admitted(analysis_id, withdrawn=True))
    admitted = np.concatenate(parts) if parts else np.zeros(0)
    if admitted.size == 0:
        raise _report_nobody(analysis_id, plans)
    ids = plans[0].ids
    return TrainingCharge(ledger, analysis_id, np.isin(ids, admitted), ids)


def _charge_parts(
    ledger: Ledger,
    analysis_id: str,
    plan: BoundPlan,
    stops: Sequence[int],
    terms: object,
    *,
    resumed: bool,
) -> TrainingCharge:
    """Charge for the steps up to the first stop, and for the parts that were paid before a kill."""
    from apiece.ledger.plans import training_terms

    ends = _check_stops(plan, stops)
    # The first part has the training's own name, which stands for the whole.
    names = [analysis_id]
    for start, end in itertools.pairwise(ends):
        names.append(f"{analysis_id}, steps {start + 1} to {end}")
    training = training_terms(plan, terms={"terms": terms, "stops": list(ends)})
    parts = PaidParts(tuple(names), ends, _split_losses(plan, ends), training)
    # Read before any charge: they tell which parts were paid before a kill.
    statuses = [ledger.status(name, training) for name in names]
    is_committed = resumed and statuses[0] == "committed"
    parts.extend(ledger, plan.ids, committed=is_committed)
    included = parts.paying.copy()
    if not included.any():
        raise _report_nobody(analysis_id, [plan])
    # In order, up to the first part that was never asked for.
    for status in statuses[1:]:
        if status == "unknown":
            break
        parts.extend(ledger, plan.ids, committed=status == "committed")
    return TrainingCharge(ledger, analysis_id, included, plan.ids, parts)


def _check_stops(plan: BoundPlan, stops: Sequence[int]) -> tuple[int, ...]:
    """Return the steps after which the training may stop, the last step among them."""
    if len(plan.stages) != 1 or not plan.has_fixed_steps:
        raise InputError(
            "stops: the plan's steps are drawn by chance, or in several stages; leave them out, or "
            "plan with noise=Correlated()"
        )
    ends = [_check.count("stops", stop) for stop in stops]
    if ends[-1] < plan.steps:
        ends.append(plan.steps)
    if any(end <= start for start, end in itertools.pairwise(ends)) or ends[-1] > plan.steps:
        raise InputError(f"stops = {list(stops)}: must rise, up to the plan's {plan.steps} steps")
    return tuple(ends)


def _split_losses(plan: BoundPlan, ends: Sequence[int]) -> Floats:
    """Return μ² that each part adds for each record, (parts, n), rounded up."""
    groups = range(len(plan.budget_groups))
    # By group: what the steps up to each end cost, and the difference to the end before.
    losses = np.zeros((len(ends), len(plan.budget_groups)))
    for group in groups:
        previous = 0.0
        for part, end in enumerate(ends):
            mechanism = plan.stages[0].mechanism(group, end)
            if mechanism is None:
                continue
            assert isinstance(mechanism, Gaussian)  # fixed steps are one Gaussian
            # μ² of one Gaussian is 1/(noise multiplier)².
            total = mechanism.noise_multiplier**-2 * (1 + _ROUNDING_SHARE)
            # Rounded up twice, so that neither the total nor the difference is below the true one.
            losses[part, group] = max(total - previous, 0.0) * (1 + _ROUNDING_SHARE)
            previous = total
    # (parts, n): from groups to records.
    return losses[:, plan.group_index]


def _report_nobody(analysis_id: str, plans: list[BoundPlan]) -> AnalysisError:
    return AnalysisError(
        f"analysis {analysis_id!r}: nobody's account can bear the plan; "
        + _describe_needs(plans)
        + " (then under a new name: this one stands for a training of nobody)"
    )


def _convert_ids(ledger: Ledger, plan: Plan) -> BoundPlan:
    """Return the plan with ids of the ledger's kind: numbers, where the ledger holds numbers."""
    from apiece.ledger.codec import parse_ids  # the ledger is an extra of its own

    bound = BoundPlan.of(plan)
    if ledger.id_kind != "integer" or bound.ids.dtype.kind == "i":
        return bound
    # As texts: an id is a number only if it is written as one.
    numbers, valid = parse_ids(bound.ids.tolist(), "integer")
    if not valid.all():
        raise InputError(
            f"ids: {int((~valid).sum())} of {valid.size} are not whole numbers as 7 is written, "
            "but this ledger's ids are; mend the column of ids"
        )
    return replace(bound, consents=bound.consents.with_ids(numbers))


def _describe_needs(plans: list[BoundPlan]) -> str:
    """Say which ε an account needs for the plans, from the plans alone."""
    from apiece.ledger.plans import training_costs

    budgets = plans[0].budget_groups
    group_index = plans[0].group_index
    # At each record's own δ.
    needs = training_costs(*plans).epsilon(budgets.delta[group_index])
    epsilons = budgets.epsilon[group_index]
    low = int(np.argmin(needs))
    high = int(np.argmax(needs))
    return (
        f"an untouched account needs epsilon from {needs[low]:.4g} to {needs[high]:.4g}, where the "
        f"plan asks {epsilons[low]:.4g} and {epsilons[high]:.4g}; train with a smaller epsilon, or "
        "raise the accounts"
    )


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of a `state_dict`: names in order, types, shapes and bytes."""
    digest = hashlib.sha256()
    # Sorted, so that the order of a dict does not change the digest.
    for name, value in sorted(state.items()):
        if not isinstance(value, torch.Tensor):
            raise InputError(f"state: {name!r} is not a tensor; give model.state_dict()")
        head = f"{name}|{value.dtype}|{tuple(value.shape)}|"
        digest.update(head.encode() + bytes_of(value))
    return digest.hexdigest()
