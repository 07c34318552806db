"""What one trained torch model says of records."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from apiece._types import Floats
from apiece.audit.stacked_training import logit_scaled
from apiece.errors import DataError, UnsupportedError
from apiece.training import evaluating


def model_confidences(
    model: nn.Module,
    inputs: Tensor | npt.NDArray[Any],
    targets: Tensor | npt.NDArray[Any],
    *,
    batch_size: int = 1024,
) -> Floats:
    """Return φ = log(p/(1−p)) of the true class for each record, (n,).

    Args:
        model: Maps (n, …) to logits (n, classes), of at least 2 classes. It is left in the mode
            that it was in.
        inputs: (n, …).
        targets: (n,) classes.
        batch_size: How many records pass at once.

    Raises:
        DataError: Where the model does not take the inputs, its logits have another shape, or a
            target is none of its classes.

    References:
        Carlini et al. 2022, Section V: the logit-scaled confidence.

    Example:
        >>> model_confidences(nn.Flatten(), np.array([[0.0, 2.0]]), np.array([1])).round(3)
        array([2.])
    """
    inputs, targets = torch.as_tensor(inputs), torch.as_tensor(targets)
    found: list[npt.NDArray[np.float32]] = []
    with evaluating(model), torch.no_grad():
        for at in range(0, len(targets), batch_size):
            part = targets[at : at + batch_size]
            try:
                logits = model(inputs[at : at + batch_size])
            except (RuntimeError, AssertionError, TypeError) as error:
                first = str(error).strip().split("\n")[0]
                raise DataError(
                    f"model: does not take inputs of shape {tuple(inputs.shape)} and "
                    f"{inputs.dtype} ({first})"
                ) from None
            if logits.ndim != 2 or logits.shape[0] != len(part) or logits.shape[1] < 2:
                raise DataError(
                    f"model: logits of shape {tuple(logits.shape)} for {len(part)} records; "
                    "give (records, classes)"
                )
            if not bool(((part >= 0) & (part < logits.shape[1])).all()):
                raise DataError(
                    f"targets: not all in 0 … {logits.shape[1] - 1}, the model's classes"
                )
            found.append(logit_scaled(logits, part.long()))
    return np.concatenate(found).astype(np.float64)


class _Exported(nn.Module):
    """A program of torch.export, which has no training mode to be put in or out of."""

    def __init__(self, run: nn.Module) -> None:
        super().__init__()
        self.run = (run,)  # in a tuple, so that it is no submodule

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.run[0](inputs)
        return out


def exported_model(path: Path, *, trusted: bool = False) -> nn.Module:
    """Return the model in a file that `torch.export.save` wrote (.pt2), with a dynamic batch.

    Such a file can run any code when it is loaded: its constants are pickled, and the expressions
    in it are evaluated.

    Args:
        path: The file.
        trusted: True for a file whose writer you would let run programs as you. Without it nothing
            of the file is read.

    Raises:
        DataError: For a file that is not there or holds something else.
        UnsupportedError: For a file that is not said to be trusted.

    Example:
        >>> from tempfile import mkdtemp
        >>> path, batch = Path(mkdtemp()) / "model.pt2", torch.export.Dim("batch")
        >>> program = torch.export.export(
        ...     nn.Linear(3, 2), (torch.ones(4, 3),), dynamic_shapes=({0: batch},)
        ... )
        >>> torch.export.save(program, path)
        >>> exported_model(path, trusted=True)(torch.ones(7, 3)).shape
        torch.Size([7, 2])
    """
    if not trusted:
        raise UnsupportedError(
            f"{path}: a .pt2 file can run any code of its writer's when it is loaded; if you trust "
            "where it comes from as you trust a program, pass --trust-model (trusted=True); "
            "scores of a model that you do not trust can be audited with --canaries"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            known = any(name.endswith("archive_format") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a .pt2 file") from None
    if not known:
        raise DataError(f"{path}: not a program of torch.export; write one with torch.export.save")
    return _Exported(torch.export.load(path).module())
