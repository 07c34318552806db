"""Private gradient descent with individual filtering: people leave as their budgets run out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apiece import _check
from apiece._identity import require_ids, require_rows
from apiece._types import Floats, Integers, Mask
from apiece.errors import InputError, UnsupportedError, VerificationError
from apiece.training.batches import Draw, EqualSampler
from apiece.training.callbacks import Callback, Progress
from apiece.training.clipping import ClippedSum, guards
from apiece.training.clipping.records import LossFunction
from apiece.training.loop import Descent, Loop, SumOver
from apiece.training.processes import Processes
from apiece.training.randomness import Streams
from apiece.training.sources import source_of
from apiece.training.sums import Sums, read_units
from apiece.training.updates import Scheduler, Updates, check_holds, run_dry

# Factor on a norm that is charged: norms are computed in single precision, whose error it covers.
ROOM = 1 + 2.0**-16


class Accounts(Protocol):
    """One account a record: `GaussianFilter`, `RenyiFilter`, or the people of a ledger."""

    def admit(self, norms: npt.ArrayLike, noise_stddev: float) -> Mask:
        """Charge all who can pay; return who has paid, (n,)."""
        ...

    def affordable(self, noise_stddev: float) -> Floats:
        """Return the largest norm that each account can still pay for, (n,)."""
        ...


class ByBound:
    """A charger by which every account pays for its clip bound at every step, while it can.

    The sum holds records whose account has just paid for their whole bound, with no discount for
    sampling. `active` says who paid for the last step: data about people.

    clip_norms: (n,) each record's bound, drawn or not.
    """

    def __init__(self, accounts: Accounts, clip_norms: Floats) -> None:
        self._accounts = accounts
        self._clip_norms = clip_norms
        self.active: Mask | None = None

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Charge everyone; return the sum over those who were drawn and could pay."""
        # Everyone pays, drawn or not: who pays follows from the bounds alone, and no amplification
        # is claimed.
        self.active = self._accounts.admit(self._clip_norms, draw.noise_stddev)
        has_paid = self.active[draw.records]
        return sum_over(draw.records[has_paid], draw.clip_norms[has_paid])


class ByNorm:
    """A charger by which every account pays for its record's present norm; for full batches.

    At most its bound is paid. Whoever can pay for the whole clip bound is summed in one pass; of
    the others the norms come first, and then the sum over those who can pay for them. In that
    second pass each is clipped at its charge, whatever norm the model, which may be random, gives
    now: each record's share of the sum is at most what its account has just paid for. `active` says
    who paid for the last step: data about people. Source: Feldman and Zrnic 2021, Alg. 1.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.active: Mask | None = None

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Return the sum over all who can pay for their current norm. Everyone must be drawn."""
        bounds = draw.clip_norms
        # What each account can still pay for, before anything is computed of a record.
        affordable = self._accounts.affordable(draw.noise_stddev)
        # Whatever its norm is, a record whose account can pay for the whole bound is in the sum.
        is_certain = bounds <= affordable
        certain = np.flatnonzero(is_certain)
        uncertain = np.flatnonzero(~is_certain & (affordable > 0))
        # The first pass: each is clipped at the whole bound, which their account can pay.
        total = sum_over(certain, bounds[certain])
        # Whoever has nothing left is charged their bound, which is refused.
        charges = bounds.copy()
        charges[certain] = compute_charges(total)
        if uncertain.size:
            # Norms alone are needed of the others; this sum is dropped.
            charges[uncertain] = compute_charges(sum_over(uncertain, bounds[uncertain]))
        # Everyone is charged at once, after all norms are known: no charge can be half made.
        active = self._accounts.admit(charges, draw.noise_stddev)
        if not active[certain].all():
            raise VerificationError("filter: refused a charge that it had said was affordable")
        self.active = active
        # Clipped at what was paid, and not at the bound.
        admitted = uncertain[active[uncertain] & (charges[uncertain] > 0)]
        if not admitted.size:
            return total
        return total + sum_over(admitted, charges[admitted])


def compute_charges(clipped: ClippedSum) -> Floats:
    """Return the largest norm of each record's share, (B,); 0 for one that was not finite.

    A norm below the least bound that can be enforced is charged as that bound.
    """
    # Raised by the room, so that a charge covers the true norm in spite of round-off.
    norms = clipped.norms.detach().cpu().numpy().astype(np.float64) * ROOM
    bounds = clipped.clip_norms.cpu().numpy()
    charges = np.minimum(np.maximum(norms, guards.LEAST_BOUND), bounds)
    # Whoever was left out of the sum pays nothing.
    return np.asarray(np.where(np.isfinite(norms), charges, 0.0))


class FilteredTrainer(Descent):
    """Gradient descent in which each record takes part for as long as its own budget lasts.

    Args:
        model: As in `Trainer`.
        optimizer: As in `Trainer`.
        loss_fn: As in `Trainer`.
        accounts: One a record, in the order of the data: a filter, or the people of a ledger.
            With `people`, one a person.
        dataset: As in `Trainer`.
        clip_norm: Bound on each record's gradient, one for all or one a record; with `people`, on
            the sum of a person's rows, one for all or one a person. A Series has the index of the
            accounts, or their ids; an array is in their order.
        noise_stddev: Standard deviation of the noise on the sum of each step.
        sampling_probability: 1 is full-batch descent, each record charged for its current norm;
            below 1 each active record is charged for its clip bound at every step, sampled or
            not, with no discount for sampling.
        expected_batch_size: The public normaliser, records times probability by default; it never
            follows the number of active records.
        seed: Repeats a run; None takes noise and samples from the operating system, for a release.
        scheduler: Scheduler of the learning rate; one step an update.
        physical_batch_size: Number of records in memory at a time; None takes all at once.
        method: Method of `clip_and_sum`.
        people: (n,) The position, from 0, of the account that each row is of, where accounts are of
            persons with any number of rows; None where each row is a record.
        rows_per_person: The most rows that a person brings to a step, by coins of that person
            alone; None for all. Their gradients are added, charged and clipped as one.
        callbacks: Get a `Progress` after each step. How long a step took follows the number of
            active records: show it to nobody but the steward.

    Raises:
        InputError: For values out of bounds or of another number than the records, and parameters
            that the optimizer does not hold.
        DataError: For a person without a row, and a Series that cannot be joined to the accounts or
            to the dataset.
        UnsupportedError: For several processes, which would each charge and add noise for
            themselves, an optimizer that calls for a closure, and what `clip_and_sum` does not
            take.

    Guarantee:
        However long it runs, each record's transcript of parameters is (ε_i, δ_i)-DP under
        add/remove by the filter's guarantee, where `seed` is None. Who is active, and how many, is
        data about people and is returned by nothing but `active_records`.

    References:
        Feldman and Zrnic 2021, Alg. 1 and Thm 2.2; individual budgets: Boenisch et al. 2023, §5.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from apiece.filters import GaussianFilter
        >>> from apiece.training import FilteredTrainer
        >>> model = nn.Linear(2, 1)
        >>> loss = lambda out, y: (out[:, 0] - y).square()
        >>> accounts = GaussianFilter([1.0] * 8, 1e-5)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> data = torch.ones(8, 2), torch.ones(8)
        >>> trainer = FilteredTrainer(model, optimizer, loss, accounts, data, clip_norm=1.0,
        ...     noise_stddev=9.0, seed=0)
        >>> trainer.fit(5); trainer.step_number
        5
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFunction,
        accounts: Accounts,
        dataset: object,
        *,
        clip_norm: npt.ArrayLike,
        noise_stddev: float,
        sampling_probability: float = 1.0,
        expected_batch_size: float | None = None,
        seed: int | None = None,
        scheduler: Scheduler | None = None,
        physical_batch_size: int | None = None,
        method: str = "auto",
        people: npt.ArrayLike | None = None,
        rows_per_person: int | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.model = guards.unwrap(model)
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.accounts = accounts
        processes = Processes.current(self.model)
        if processes.world > 1:
            raise UnsupportedError(
                f"FilteredTrainer: {processes.world} processes, and accounts are charged in one; "
                "train in a single process, or by a plan with Trainer"
            )
        if physical_batch_size is not None:
            physical_batch_size = _check.count("physical_batch_size", physical_batch_size)
        source = source_of(dataset)
        updates = Updates(optimizer, scheduler, None)
        require_rows("dataset", None, people=people)
        _check_index(accounts, clip_norm)
        positions = _number_accounts(people, len(source))
        sums = Sums(
            self.model,
            loss_fn,
            source,
            width=physical_batch_size,
            method=method,
            people=read_units(people, positions, source, rows_per_person),
        )
        check_holds(optimizer, sums.parameters)
        bounds = _read_bounds(clip_norm, positions.size)
        sampler = EqualSampler(bounds, sampling_probability, noise_stddev, expected_batch_size)
        self._charger: ByBound | ByNorm
        # Below 1 the charge is the bound; full batches are charged by norm.
        if sampler.probability < 1:
            self._charger = ByBound(accounts, sampler.clip_norms)
        else:
            self._charger = ByNorm(accounts)
        self.expected_batch_size = sampler.size
        streams = Streams.from_seed(seed)
        self._loop = Loop(
            sums=sums,
            sampler=sampler,
            charger=self._charger,
            updates=updates,
            streams=streams,
            processes=processes,
            callbacks=tuple(callbacks),
        )

    def fit(self, steps: int) -> None:
        """Take `steps` further steps; once nobody can pay, a step is noise only.

        Args:
            steps: At least 1.

        Raises:
            InputError: For another number, or a scheduler that ends before.
            StateError: As `step`.
        """
        end = self.step_number + _check.count("steps", steps)
        run_dry(self._loop.updates.scheduler, self.optimizer, steps)
        while self.step_number < end:
            self._loop.step(end)

    def step(self) -> Progress:
        """Take one step: charge, sum over those who paid, add noise, update.

        Returns:
            The progress that the callbacks got.

        Raises:
            StateError: Where the last update was interrupted half-way, or other parameters are
                trainable than at first.
        """
        return self._loop.step(self.step_number + 1)

    def active_records(self) -> Mask:
        """Return which accounts were active in the last step. Data about people: not for logs.

        Raises:
            InputError: Before the first step.
        """
        if self._charger.active is None:
            raise InputError("active_records: no step was taken yet; call step() first")
        return self._charger.active.copy()


def _check_index(accounts: Accounts, clip_norm: npt.ArrayLike) -> None:
    """Check the bounds' index, where they have one, against the accounts' people."""
    ids = getattr(accounts, "ids", None)  # the people of a ledger have ids, a filter has none
    if ids is not None:
        require_ids("accounts.ids", ids, clip_norm=clip_norm)
    else:
        require_rows("accounts", getattr(accounts, "persons", None), clip_norm=clip_norm)


def _number_accounts(people: npt.ArrayLike | None, size: int) -> Integers:
    """Return the accounts' positions, 0, 1, …: one a row, or up to the largest in `people`."""
    if people is None:
        return np.arange(size)
    owner = np.asarray(people)
    are_integers = owner.dtype.kind in "iu" and owner.size > 0
    if not are_integers or not 0 <= owner.min() <= owner.max() < size:
        raise InputError(
            f"people: {owner.size} entries of type {owner.dtype} for {size} rows; give the "
            "position of each row's account, whole numbers from 0 on without a gap"
        )
    return np.arange(int(owner.max()) + 1)


def _read_bounds(clip_norm: npt.ArrayLike, size: int) -> Floats:
    """Return each record's bound, (size,), from one for all or one a record."""
    bounds = _check.positive_array("clip_norm", clip_norm)
    if bounds.ndim and bounds.shape != (size,):
        raise InputError(
            f"clip_norm: shape {bounds.shape} for {size} accounts; give one, or one for each"
        )
    return np.broadcast_to(bounds, (size,)).copy()
