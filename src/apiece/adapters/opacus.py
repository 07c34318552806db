"""From Opacus: the module, optimizer and data loader of one budget, trained with one a record.

Opacus itself is not needed: what it wraps is unwrapped here, by the names that it gives.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from apiece._lazy import lacking

try:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
except ModuleNotFoundError as error:
    raise lacking(error.name, "train") from None

from apiece import _check
from apiece.assignment import Scale, Strategy, assign
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError, StateError, UnsupportedError
from apiece.plan import Plan
from apiece.training import Trainer
from apiece.training.callbacks import Callback


def individual(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_loader: DataLoader[Any],
    criterion: Any,
    budgets: Budgets,
    *,
    epochs: int,
    max_grad_norm: float,
    strategy: Strategy | str | None = None,
    people: npt.ArrayLike | None = None,
    callbacks: Sequence[Callback] | Callable[[Plan], Sequence[Callback]] = (),
    **options: Any,
) -> Trainer:
    """Return a trainer of individual budgets from the arguments of `PrivacyEngine.make_private`.

    It takes epochs · len(data_loader) steps with n / len(data_loader) records, or with people that
    share of the persons, expected in each, as Opacus does, by Poisson sampling of its own at each
    one's rate. Noise is the plan's.

    Args:
        module: Plain, or in Opacus' `GradSampleModule`, which is taken off for good.
        optimizer: Plain, or in Opacus' `DPOptimizer`, whose clipping and noise are not used.
        data_loader: Of a map-style dataset; its number of batches gives the expected batch size.
        criterion: One loss a record; losses of torch that average or add up are taken apart.
        budgets: One a record, in the order of the dataset; with people one a person, by `ids`.
        epochs: From 1 on.
        max_grad_norm: The mean clipping norm of the plan.
        strategy: Strategy of `assign`; None takes `Scale()`.
        people: (n,) The person of each record, in the order of the dataset; None where each record
            is a unit of its own.
        callbacks: Of `Trainer`; or a function from the plan that is made here to them, such as
            `lambda plan: [TensorBoard("runs/first", plan)]`.
        **options: Of `Trainer`, such as rows_per_person.

    Returns:
        A `Trainer`, with its plan as `.plan`; `.fit()` runs it.

    Raises:
        InputError: For budgets of another number of records; what `assign` and `Trainer` raise,
            such as for people who are not those of the budgets.
        DataError: For a data loader that draws some records oftener than others, or leaves some
            out, and for records that cannot be read by position.
        StateError: For an optimizer that made steps: no plan covers what it has learned.
        UnsupportedError: For parameters with Opacus' hooks.

    Guarantee:
        That of `Trainer` under the plan that `assign` gives. Opacus' accountant knows nothing of
        it.

    References:
        Yousefpour et al. 2021.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from apiece import Budgets
        >>> from apiece.adapters.opacus import individual
        >>> data = TensorDataset(torch.randn(40, 3), torch.zeros(40, dtype=torch.long))
        >>> model = nn.Linear(3, 2)
        >>> trainer = individual(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=8),
        ...     nn.CrossEntropyLoss(), Budgets(epsilon=[1.0] * 20 + [3.0] * 20, delta=1e-3),
        ...     epochs=1, max_grad_norm=1.0, seed=0)
        >>> trainer.fit()
        >>> trainer.steps, [round(group.epsilon, 3) for group in trainer.plan.groups]
        (5, [1.0, 3.0])
    """
    records: Any = data_loader.dataset
    if not hasattr(records, "__len__"):
        raise DataError("data_loader: its dataset has no length; give a map-style one")
    steps = _check.count("epochs", epochs) * len(data_loader)
    if people is None and len(records) != len(budgets):
        raise InputError(
            f"budgets: {len(budgets)} of them for a dataset of {len(records)} records; give one a "
            "record, in the order of the dataset, or people= where a person has several"
        )
    plan = assign(
        budgets,
        Scale() if strategy is None else strategy,
        steps=steps,
        expected_batch_size=len(budgets) / len(data_loader),
        clip_norm=max_grad_norm,
    )
    if people is not None:
        plan = replace(plan, unit="person")
        options = options | {"people": people}
    plain_optimizer: torch.optim.Optimizer = getattr(optimizer, "original_optimizer", optimizer)
    if plain_optimizer.state:
        raise StateError(
            "optimizer: it has made steps, which the plan does not cover; begin with a new "
            "optimizer, and a model that has not seen these records"
        )
    # Opacus' ghost clipping wraps the criterion.
    loss: Any = getattr(criterion, "criterion", criterion)
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "none") != "none":
        loss = copy.copy(loss)
        loss.reduction = "none"
    options = options | {"callbacks": callbacks(plan) if callable(callbacks) else callbacks}
    return Trainer(_unwrap(module), plain_optimizer, loss, plan, data_loader, **options)


def _unwrap(module: nn.Module) -> nn.Module:
    """Return the module without Opacus' wrapper; `UnsupportedError` where its hooks are left."""
    to_standard_module: Any = getattr(module, "to_standard_module", None)
    if to_standard_module is not None:
        module = to_standard_module()
    hooked = [name for name, p in module.named_parameters() if hasattr(p, "grad_sample")]
    if hooked:
        raise UnsupportedError(
            f"module: Opacus' hooks are on {hooked[0]!r} ({len(hooked)} parameters); take them off "
            "with the cleanup() of what make_private gave"
        )
    return module
