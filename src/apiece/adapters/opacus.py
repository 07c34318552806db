"""From Opacus: the module, optimizer and data loader of one budget, trained with one a record.

Opacus itself is not needed: what it wraps is unwrapped here, by the names that it gives.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from apiece import _check
from apiece.assignment import Scale, Strategy, assign
from apiece.budgets import Budgets
from apiece.errors import InputError, StateError, UnsupportedError
from apiece.training import Trainer

_EVEN = ("UniformWithReplacementSampler", "DistributedUniformWithReplacementSampler")


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
    **options: Any,
) -> Trainer:
    """Return a trainer of individual budgets for what `PrivacyEngine.make_private` takes or gives.

    It takes epochs · len(data_loader) steps with n / len(data_loader) records expected in each, as
    Opacus does, by Poisson sampling of its own at each record's rate. Noise is the plan's.

    Args:
        module: Plain, or in Opacus' `GradSampleModule`, which is taken off for good.
        optimizer: Plain, or in Opacus' `DPOptimizer`, whose clipping and noise are not used.
        data_loader: Of a map-style dataset; how many batches it has says the expected batch size.
        criterion: One loss a record; losses of torch that average or add up are taken apart.
        budgets: One a record, in the order of the dataset.
        epochs: From 1 on.
        max_grad_norm: The mean clipping norm of the plan.
        strategy: Of `assign`; `Scale()` where None.
        **options: Of `Trainer`.

    Returns:
        A `Trainer`, with its plan as `.plan`; `.fit()` runs it.

    Raises:
        InputError: For a data loader that draws some records oftener than others, or leaves some
            out; for budgets of another number of records; what `assign` and `Trainer` raise.
        StateError: For an optimizer that made steps: no plan covers what it has learned.
        UnsupportedError: For records that cannot be read by position, a `collate_fn` of your own,
            and parameters with Opacus' hooks.

    Guarantee:
        That of `Trainer` under the plan that `assign` gives. Opacus' accountant knows nothing of
        it.

    References:
        Yousefpour et al. 2021.

    Example:
        >>> from torch.utils.data import TensorDataset
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
    dataset = _records_of(data_loader)
    steps = _check.count("epochs", epochs) * len(data_loader)
    if len(dataset) != len(budgets):
        raise InputError(
            f"budgets: {len(budgets)} of them for a dataset of {len(dataset)} records; give one a "
            "record, in the order of the dataset"
        )
    plan = assign(
        budgets,
        Scale() if strategy is None else strategy,
        steps=steps,
        expected_batch_size=len(dataset) / len(data_loader),
        clip_norm=max_grad_norm,
    )
    plain = _module_of(module)
    return Trainer(plain, _optimizer_of(optimizer), _apart(criterion), plan, dataset, **options)


def _module_of(module: nn.Module) -> nn.Module:
    """Return the module without what Opacus puts around it and hooks into it."""
    plain: Any = getattr(module, "to_standard_module", None)
    if plain is not None:
        module = plain()
    hooked = [name for name, p in module.named_parameters() if hasattr(p, "grad_sample")]
    if hooked:
        raise UnsupportedError(
            f"module: Opacus' hooks are on {hooked[0]!r} ({len(hooked)} parameters); take them off "
            "with the cleanup() of what make_private gave"
        )
    return module


def _optimizer_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer inside, without Opacus' clipping and noise."""
    plain: torch.optim.Optimizer = getattr(optimizer, "original_optimizer", optimizer)
    if plain.state:
        raise StateError(
            "optimizer: it has made steps, which the plan does not cover; begin with a new "
            "optimizer, and a model that has not seen these records"
        )
    return plain


def _records_of(loader: DataLoader[Any]) -> Any:
    """Return the dataset of a loader that gives every record its turn."""
    batches = loader.batch_sampler
    sampler = getattr(batches, "sampler", None) if isinstance(batches, BatchSampler) else batches
    even = type(sampler) is SequentialSampler or type(sampler).__name__ in _EVEN
    if type(sampler) is RandomSampler:
        even = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    if not even:
        raise InputError(
            f"data_loader: a {type(sampler).__name__} draws; the plan says how often each record "
            "takes part: give a loader with shuffle=True, and a smaller dataset for fewer records"
        )
    collate = getattr(loader.collate_fn, "wrapped_collator_fn", loader.collate_fn)
    if collate is not default_collate:
        raise UnsupportedError(
            "data_loader: it has a collate_fn of its own; do its work in the dataset's "
            "__getitem__, so that each record is made alone"
        )
    return loader.dataset


def _apart(criterion: Any) -> Any:
    """Return torch's loss with one value a record; other losses as they are."""
    criterion = getattr(criterion, "criterion", criterion)  # of Opacus' ghost clipping
    if isinstance(criterion, nn.Module) and getattr(criterion, "reduction", "none") != "none":
        criterion = copy.copy(criterion)
        criterion.reduction = "none"
    return criterion
