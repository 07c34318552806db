"""The training engine: sampling, clipping and noise for each record at its own budget."""

from apiece._lazy import lacking

try:
    import cryptography  # noqa: F401
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise lacking(error.name, "train") from None

from apiece.training.batches import poisson_batches
from apiece.training.callbacks import (
    Evaluation,
    PlannedSpending,
    Progress,
    ProgressBar,
    TensorBoard,
    public_numbers,
)
from apiece.training.charging import TrainingCharge, charge_training
from apiece.training.clipping import ClippedSum, Proof, clip_and_sum
from apiece.training.filtered import FilteredTrainer
from apiece.training.randomness import ChaCha20Stream, add_noise
from apiece.training.sources import ParquetShards, TarShards
from apiece.training.stacked import StackedMlp
from apiece.training.trainer import Trainer
from apiece.training.updates import OutputAverage

__all__ = [
    "ChaCha20Stream",
    "ClippedSum",
    "Evaluation",
    "FilteredTrainer",
    "OutputAverage",
    "ParquetShards",
    "PlannedSpending",
    "Progress",
    "ProgressBar",
    "Proof",
    "StackedMlp",
    "TarShards",
    "TensorBoard",
    "Trainer",
    "TrainingCharge",
    "add_noise",
    "charge_training",
    "clip_and_sum",
    "poisson_batches",
    "public_numbers",
]
