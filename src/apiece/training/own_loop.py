"""A loop of one's own: the model, optimizer, loss and loader that it has, made private."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader

from apiece import _check
from apiece.assignment import Scale, Strategy, assign
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError, StateError, UnsupportedError
from apiece.plan import Plan
from apiece.training.callbacks import Callback
from apiece.training.trainer import Trainer


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Any,
    loader: DataLoader[Any],
    budgets: Budgets,
    *,
    epochs: int,
    clip_norm: float,
    strategy: Strategy | str | None = None,
    people: npt.ArrayLike | None = None,
    callbacks: Sequence[Callback] | Callable[[Plan], Sequence[Callback]] = (),
    **options: Any,
) -> Trainer:
    """Return the trainer of a loop's own model, optimizer, loss and loader, at individual budgets.

    The loop goes over `.loader` and calls `.step()` once a batch; or `.fit()` is the whole loop.
    It takes epochs · len(loader) steps with n / len(loader) records, or with people that share of
    the persons, expected in each, by Poisson sampling at each one's own rate. Noise is the plan's.

    What Opacus' `PrivacyEngine.make_private` returns may be given too: its wrappers are taken off,
    for good, and its sampling, clipping and noise are not used.

    Args:
        model: Plain, or in Opacus' `GradSampleModule`.
        optimizer: Plain, or in Opacus' `DPOptimizer`.
        loss_fn: One loss a record; losses of torch that average or add up are taken apart.
        loader: Of a map-style dataset; its number of batches gives the expected batch size.
        budgets: One a record, in the order of the dataset; with people one a person, by `ids`.
        epochs: From 1 on.
        clip_norm: The mean clipping norm of the plan.
        strategy: Strategy of `assign`; None takes `Scale()`.
        people: (n,) The person of each record, in the order of the dataset; None where each record
            is a unit of its own.
        callbacks: Of `Trainer`; or a function from the plan that is made here to them, such as
            `lambda plan: [TensorBoard("runs/first", plan)]`.
        **options: Of `Trainer`, such as rows_per_person.

    Returns:
        A `Trainer`, with its plan as `.plan`.

    Raises:
        InputError: For budgets of another number of records; what `assign` and `Trainer` raise,
            such as for people who are not those of the budgets.
        DataError: For a data loader that draws some records oftener than others, or leaves some
            out, and for records that cannot be read by position.
        StateError: For an optimizer that made steps: no plan covers what it has learned.
        UnsupportedError: For parameters with Opacus' hooks.

    Guarantee:
        That of `Trainer` under the plan that `assign` gives.

    References:
        Yousefpour et al. 2021, whose name the function has.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from apiece import Budgets, make_private
        >>> data = TensorDataset(torch.randn(40, 3), torch.zeros(40, dtype=torch.long))
        >>> model = nn.Linear(3, 2)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> budgets = Budgets(epsilon=[1.0] * 20 + [3.0] * 20, delta=1e-3)
        >>> private = make_private(model, sgd, nn.CrossEntropyLoss(), DataLoader(data, 8), budgets,
        ...                        epochs=1, clip_norm=1.0, seed=0)
        >>> for batch in private.loader:
        ...     _ = private.step()
        >>> {name: round(spent, 2) for name, spent in private.epsilon_spent().items()}
        {'epsilon=1': 1.0, 'epsilon=3': 3.0}
    """
    records: Any = loader.dataset
    if not hasattr(records, "__len__"):
        raise DataError("loader: its dataset has no length; give a map-style one")
    # One step a batch of the loader, epochs times.
    steps = _check.count("epochs", epochs) * len(loader)
    if people is None and len(records) != len(budgets):
        raise InputError(
            f"budgets: {len(budgets)} of them for a dataset of {len(records)} records; give one a "
            "record, in the order of the dataset, or people= where a person has several"
        )
    plan = assign(
        budgets,
        Scale() if strategy is None else strategy,
        steps=steps,
        # Expected records a step: all of them once in a pass over the loader.
        expected_batch_size=len(budgets) / len(loader),
        clip_norm=clip_norm,
    )
    if people is not None:
        plan = replace(plan, unit="person")
        options = options | {"people": people}
    # Opacus' wrapper holds the user's optimizer.
    plain_optimizer: torch.optim.Optimizer = getattr(optimizer, "original_optimizer", optimizer)
    if plain_optimizer.state:
        raise StateError(
            "optimizer: it has made steps, which the plan does not cover; begin with a new "
            "optimizer, and a model that has not seen these records"
        )
    # Opacus' ghost clipping wraps the loss.
    loss: Any = getattr(loss_fn, "criterion", loss_fn)
    # The copy asks for one loss a record; the user's own loss object stays as it is.
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "none") != "none":
        loss = copy.copy(loss)
        loss.reduction = "none"
    options = options | {"callbacks": callbacks(plan) if callable(callbacks) else callbacks}
    return Trainer(_unwrap(model), plain_optimizer, loss, plan, loader, **options)


def _unwrap(model: nn.Module) -> nn.Module:
    """Return the model without Opacus' wrapper; `UnsupportedError` where its hooks are left."""
    to_standard_module: Any = getattr(model, "to_standard_module", None)
    if to_standard_module is not None:
        model = to_standard_module()
    # Hooks left on parameters would see gradients before clipping.
    hooked = [name for name, p in model.named_parameters() if hasattr(p, "grad_sample")]
    if hooked:
        raise UnsupportedError(
            f"model: Opacus' hooks are on {hooked[0]!r} ({len(hooked)} parameters); take them off "
            "with the cleanup() of what make_private gave"
        )
    return model
