"""Which parameters are trained from which step on: gradual unfreezing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from apiece import _check
from apiece.errors import InputError
from apiece.training.sums import Sums


class Unfreezing:
    """Trains, from each step of a schedule on, the parameters whose names begin as it says.

    Clipping, noise and update are of these alone; the others stand still. The schedule is fixed
    before the run, so that a step's mechanism, and the plan's promises, are what they were.

    Args:
        model: All of whose parameters are frozen or trained by the schedule from now on.
        schedule: Step, from 0 on, to beginnings of names, in whole parts: "encoder.0" is not
            "encoder.01"; "" is every parameter.

    Raises:
        InputError: For a schedule that does not begin with step 0, a beginning that no parameter
            has, or a stage that trains nothing.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        >>> found = Unfreezing(model, {0: ["1"], 50: [""]})
        >>> [sorted(found.at(step)) for step in (49, 50)]
        [['1.bias', '1.weight'], ['0.bias', '0.weight', '1.bias', '1.weight']]
    """

    def __init__(self, model: nn.Module, schedule: Mapping[int, Sequence[str]]) -> None:
        self._named = dict(model.named_parameters())
        steps = [_check.count("unfreeze", step, least=0) for step in schedule]
        if not steps or min(steps) != 0:
            raise InputError(
                f"unfreeze: begins at step {min(steps, default=None)}; give step 0 too"
            )
        self._stages = [(step, self._beginning(schedule[step])) for step in sorted(steps)]

    def _beginning(self, beginnings: Sequence[str]) -> frozenset[str]:
        if isinstance(beginnings, str):
            raise InputError(f"unfreeze: {beginnings!r} is one name; give a list of them")
        found: set[str] = set()
        for start in beginnings:
            held = {n for n in self._named if not start or f"{n}.".startswith(f"{start}.")}
            if not held:
                raise InputError(
                    f"unfreeze: no parameter's name begins with {start!r}; the first is "
                    f"{next(iter(self._named), None)!r}"
                )
            found |= held
        if not found:
            raise InputError("unfreeze: a stage trains no parameter; give beginnings of names")
        return frozenset(found)

    def at(self, step: int) -> frozenset[str]:
        """Return the names of the parameters trained in a step.

        Args:
            step: Counted from 0.
        """
        return next(names for begin, names in reversed(self._stages) if begin <= step)

    def enter(self, step: int, sums: Sums) -> None:
        """Let `sums` be over the parameters trained in a step, and freeze the others.

        Args:
            step: Counted from 0.
            sums: Of the model.

        Raises:
            StateError: Where requires_grad was changed by others meanwhile.
        """
        names = self.at(step)
        if names == sums.parameters.keys():
            return
        sums.check_same()
        for name, parameter in self._named.items():
            parameter.requires_grad_(name in names)
        sums.take_parameters()
