"""Private gradient descent with individual filtering: people leave as their budgets run out."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apiece import _check
from apiece._types import Floats, Mask
from apiece.errors import InputError, VerificationError
from apiece.training.clipping import (
    ClippedSum,
    LossFunction,
    State,
    clip_and_sum,
    empty_sum,
    guards,
    model_randomness,
    records,
)
from apiece.training.noise import add_noise
from apiece.training.randomness import ChaCha20Stream
from apiece.training.updates import Updates, check_holds, check_same

_ROOM = 1 + 2.0**-16  # norms are computed in single precision; charges are for a little more


class Filter(Protocol):
    """What keeps the accounts: `GaussianFilter`, `RenyiFilter`, or people of a ledger."""

    def admit(self, norms: npt.ArrayLike, noise_stddev: float) -> Mask:
        """Charge all who can pay; return who can."""
        ...

    def affordable(self, noise_stddev: float) -> Floats:
        """Return the largest norm that each person can still pay for."""
        ...


class FilteredTrainer:
    """Gradient descent in which each record takes part for as long as its own budget lasts.

    people: one account a record, in the order of the data. clip_norm: bound on each record's
    gradient, one for all or one a record. noise_stddev: of the noise on the sum of each step.
    sampling_probability: 1 is full-batch descent, each record charged for its current norm (Feldman
    and Zrnic 2021); below 1 each active record is charged for its clip bound at every step, sampled
    or not, with no discount for sampling. expected_batch_size: the public normaliser, records times
    probability by default; it never follows the number of active records.
    seed: repeats a run; None takes noise and samples from the operating system, for a release.

    Guarantee: however long it runs, each record's transcript of parameters is (ε_i, δ_i)-DP by
    the filter's guarantee, add/remove adjacency (Feldman and Zrnic 2021, Alg. 1 and Thm 2.2;
    individual budgets: Boenisch et al. 2023 §5). Who is active, and how many, is data about people
    and is returned by nothing but `active_records`.

    >>> from apiece.filters import GaussianFilter
    >>> model = nn.Linear(2, 1)
    >>> loss = lambda out, y: (out[:, 0] - y).square()
    >>> people = GaussianFilter([1.0] * 8, 1e-5)
    >>> trainer = FilteredTrainer(model, torch.optim.SGD(model.parameters(), 0.1), loss,
    ...     torch.ones(8, 2), torch.ones(8), people=people, clip_norm=1., noise_stddev=9., seed=0)
    >>> trainer.fit(5); trainer.steps
    5
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFunction,
        inputs: Any,
        targets: Any,
        *,
        people: Filter,
        clip_norm: npt.ArrayLike,
        noise_stddev: float,
        sampling_probability: float = 1.0,
        expected_batch_size: float | None = None,
        seed: int | None = None,
        physical_batch_size: int | None = None,
    ) -> None:
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self._parameters, self._state = guards.trainable(model), State(model=model)
        self._updates = Updates(optimizer, None, None)
        check_holds(optimizer, self._parameters)
        self.inputs, self.targets, self.people = inputs, targets, people
        self.size = records.count(inputs, targets)
        bounds = _check.positive_array("clip_norm", clip_norm)
        if bounds.ndim and bounds.shape != (self.size,):
            raise InputError(f"clip_norm: shape {bounds.shape} for {self.size} records")
        self.clip_norms = np.broadcast_to(bounds, (self.size,)).copy()
        self.noise_stddev = _check.positive("noise_stddev", noise_stddev)
        self.sampling_probability = _check.probability(
            "sampling_probability", sampling_probability, low_open=True
        )
        self.expected_batch_size = _check.positive(
            "expected_batch_size",
            self.size * self.sampling_probability
            if expected_batch_size is None
            else expected_batch_size,
        )
        self.physical_batch_size = physical_batch_size
        self.steps = 0
        self._noise, self._coins = _stream(seed, "noise"), _stream(seed, "sampling")
        self._passes = _stream(seed, "model")
        self._active: Mask | None = None

    def fit(self, steps: int) -> None:
        """Take `steps` steps; once nobody can pay, what is left of them is noise."""
        for _ in range(_check.count("steps", steps)):
            self.step()

    def step(self) -> None:
        """Charge, sum over those who paid, add noise, update.

        Raises `StateError` when other parameters are trainable than at first.
        """
        check_same(self.model, self._parameters)
        with self._state.kept(contents=False):
            total = self._sampled() if self.sampling_probability < 1 else self._full()
        noisy = add_noise(total, self.noise_stddev, generator=self._noise)
        gradients = {name: value / self.expected_batch_size for name, value in noisy.items()}
        self._updates.apply(self.steps, self._parameters, gradients)
        self.steps += 1

    def active_records(self) -> Mask:
        """Return who was active in the last step. Data about people: not for logs."""
        if self._active is None:
            raise InputError("active_records: no step was taken yet; call step() first")
        return self._active.copy()

    def _sum(self, who: npt.NDArray[np.intp], bounds: Floats) -> ClippedSum:
        """Return the sum over the records `who`, clipped at `bounds`, from one pass of its own.

        Every pass draws the model's randomness anew: what one record's pass does must not depend
        on who else is in it.
        """
        inputs, targets = self.inputs, self.targets
        if who.size < self.size:
            index = torch.from_numpy(who)
            inputs, targets = records.select(inputs, index), records.select(targets, index)
        seed = int(self._passes.bits(1)[0])
        with model_randomness(seed, (p.device for p in self._parameters.values())):
            return clip_and_sum(
                self.model,
                self.loss_fn,
                inputs,
                targets,
                torch.from_numpy(bounds),
                physical_batch_size=self.physical_batch_size,
            )

    def _sampled(self) -> ClippedSum:
        active = self.people.admit(self.clip_norms, self.noise_stddev)
        self._active = active
        joins = self._coins.uniform(self.size) < self.sampling_probability
        who = np.flatnonzero(active & joins)
        return self._sum(who, self.clip_norms[who]) if who.size else self._nothing()

    def _full(self) -> ClippedSum:
        """Sum over all who can pay for their current norm.

        Whoever can pay for the whole clip bound is summed in one pass; of the others the norms
        come first, and then the sum over those who can pay for them. In that second pass each is
        clipped at what it was charged, whatever the model, which may be random, makes of it now.
        """
        affordable = self.people.affordable(self.noise_stddev)
        certain = self.clip_norms <= affordable
        sure, unsure = np.flatnonzero(certain), np.flatnonzero(~certain & (affordable > 0))
        total = self._sum(sure, self.clip_norms[sure]) if sure.size else self._nothing()
        charges = self.clip_norms.copy()
        charges[sure] = self._charges(total)
        if unsure.size:
            charges[unsure] = self._charges(self._sum(unsure, self.clip_norms[unsure]))
        active = self.people.admit(charges, self.noise_stddev)
        if not active[sure].all():
            raise VerificationError("filter: refused a charge that it had said was affordable")
        self._active = active
        late = unsure[active[unsure] & (charges[unsure] > 0)]
        return total + self._sum(late, charges[late]) if late.size else total

    def _charges(self, clipped: ClippedSum) -> Floats:
        """Return what each record's share can at most be; 0 for one that was not finite.

        Below the least bound that can be enforced nobody is charged less than that.
        """
        norms = clipped.norms.detach().cpu().numpy().astype(np.float64) * _ROOM
        bounds = clipped.clip_norms.cpu().numpy()
        held = np.minimum(np.maximum(norms, guards.LEAST_BOUND), bounds)
        return np.asarray(np.where(np.isfinite(norms), held, 0.0))

    def _nothing(self) -> ClippedSum:
        return empty_sum(self._parameters)


def _stream(seed: int | None, purpose: str) -> ChaCha20Stream:
    if seed is None:
        return ChaCha20Stream()
    return ChaCha20Stream(hashlib.sha256(f"filtered/{purpose}/{int(seed)}".encode()).digest())
