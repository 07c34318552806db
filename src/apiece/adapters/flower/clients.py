"""A Flower client whose answer is one bounded sum, of records that joined by their own coins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import nn

from apiece._types import Integers, Mask
from apiece.adapters.federation import Federation
from apiece.errors import InputError
from apiece.training import ChaCha20Stream, ClippedSum, add_noise, clip_and_sum


class FederatedClient(NumPyClient):
    """Holds a client's records, and answers a round with the sum of their clipped gradients.

    What it sends: one tensor a parameter, and 1 as its number of examples, since the true one is
    data about people. Without a drawn record it sends zeros.

    Args:
        model: Takes the round's parameters.
        loss_fn: (outputs, targets) → one loss a record.
        data: Inputs and targets, tensors with a row a record.
        levels: Of each record, its place in `federation.rates`.
        federation: What is run.
        included: Which records take part at all, such as those who could pay; None for all.
        least: With this many clients at least in every round, each adds a share of the noise, and
            the server none: for secure aggregation, where the server sees sums alone. None leaves
            the noise to the server.

    Raises:
        InputError: For parts that do not fit one another.

    Guarantee:
        Its sum is a function of the records whose coins fell so; without one record it differs by
        at most clip_norm, and with client_clip it is at most that long in all. Coins and shares of
        the noise come from the operating system's randomness.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., torch.Tensor],
        data: tuple[torch.Tensor, torch.Tensor],
        levels: Integers,
        federation: Federation,
        *,
        included: Mask | None = None,
        least: int | None = None,
    ) -> None:
        rates = np.asarray(federation.rates)[np.asarray(levels, dtype=np.int64)]
        if included is not None:
            mask = np.asarray(included)
            if mask.dtype != np.bool_ or mask.shape != rates.shape:
                raise InputError(f"included: {mask.size} for {rates.size} records; one a record")
            rates = np.where(mask, rates, 0.0)
        if rates.shape != (len(data[0]),) or len(data[0]) != len(data[1]):
            raise InputError(f"levels: {rates.size} for {len(data[0])} records; one a record")
        if least is not None and not least >= 1:
            raise InputError(f"least = {least}: give at least 1 client")
        self.model, self.loss_fn, self.data = model, loss_fn, data
        self.rates, self.federation, self.least = rates, federation, least

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, Any]:
        """Return the round's sum, 1 and nothing more.

        Args:
            parameters: Of the model, in the order of its parameters.
            config: Of Flower; not read.
        """
        with torch.no_grad():
            for own, given in zip(self.model.parameters(), parameters, strict=True):
                own.copy_(torch.from_numpy(np.array(given)))
        total = self._sum(ChaCha20Stream())
        if self.least is not None:
            share = self.federation.noise_stddev / math.sqrt(self.least)
            total = replace(total, gradients=add_noise(total, share, generator=ChaCha20Stream()))
        return [g.double().numpy() for g in total.gradients.values()], 1, {}

    def _sum(self, coins: ChaCha20Stream) -> ClippedSum:
        drawn = np.flatnonzero(coins.uniform(self.rates.size) < self.rates)
        if not drawn.size:
            none = torch.zeros(0)
            zeros = {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}
            return ClippedSum(zeros, none, none, none)
        rows = torch.from_numpy(drawn)
        inputs, targets = (part[rows] for part in self.data)
        bounds = torch.full((drawn.size,), self.federation.clip_norm)
        total = clip_and_sum(self.model, self.loss_fn, inputs, targets, bounds)
        most = self.federation.client_clip
        if most is None:
            return total
        # The nearest point of a ball: two sums are no further apart than they were.
        length = math.sqrt(sum(float(g.double().square().sum()) for g in total.gradients.values()))
        factor = min(1.0, most / length * (1 - 1e-6)) if length > 0 else 1.0
        return replace(total, gradients={n: g * factor for n, g in total.gradients.items()})
