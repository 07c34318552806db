"""The training engine: sampling, clipping and noise for each record at its own budget."""

# Imports stand behind the check that what they need is installed.
# ruff: noqa: E402

from apiece._lazy import require

require("train", "torch", "cryptography")

from apiece.training.batches import poisson_batches
from apiece.training.callbacks import (
    Evaluation,
    Progress,
    ProgressBar,
    TensorBoard,
)
from apiece.training.charging import TrainingCharge, charge_training
from apiece.training.clipping import ClippedSum, Proof, clip_and_sum
from apiece.training.epochs import Batch, EpochLoader
from apiece.training.filtered import FilteredTrainer
from apiece.training.fixed import RecordStream
from apiece.training.normalization import replace_batch_norm
from apiece.training.own_loop import make_private
from apiece.training.randomness import add_noise
from apiece.training.sources import ParquetShards, TarShards
from apiece.training.trainer import Trainer

__all__ = [
    "Trainer", "FilteredTrainer", "make_private", "EpochLoader", "Batch", "replace_batch_norm",
    "Progress", "ProgressBar", "Evaluation", "TensorBoard", "charge_training",
    "TrainingCharge", "clip_and_sum", "ClippedSum", "Proof", "add_noise", "poisson_batches",
    "ParquetShards", "TarShards", "RecordStream",
]  # fmt: skip
