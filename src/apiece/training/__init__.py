"""The training engine: sampling, clipping and noise for each record at its own budget."""

from apiece.training.batches import poisson_batches
from apiece.training.callbacks import (
    Evaluation,
    PlannedSpending,
    Progress,
    ProgressBar,
    TensorBoard,
    describe,
    public_numbers,
)
from apiece.training.checkpoints import Folder as CheckpointFolder
from apiece.training.checkpoints import write_atomically
from apiece.training.clipping import (
    ClippedSum,
    Proof,
    clip_and_sum,
    clip_factors,
    smooth_squares,
)
from apiece.training.filtered import FilteredTrainer
from apiece.training.modes import called_with, evaluating, unchanged
from apiece.training.randomness import ChaCha20Stream, Streams, add_noise, normalise
from apiece.training.sources import ParquetShards, TarShards
from apiece.training.stacked import SUMS, StackedMlp, StackedModel
from apiece.training.trainer import Trainer
from apiece.training.updates import OutputAverage

__all__ = [
    "SUMS",
    "ChaCha20Stream",
    "CheckpointFolder",
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
    "StackedModel",
    "Streams",
    "TarShards",
    "TensorBoard",
    "Trainer",
    "add_noise",
    "called_with",
    "clip_and_sum",
    "clip_factors",
    "describe",
    "evaluating",
    "normalise",
    "poisson_batches",
    "public_numbers",
    "smooth_squares",
    "unchanged",
    "write_atomically",
]
