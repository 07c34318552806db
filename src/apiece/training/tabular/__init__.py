"""Training on a table of people with a budget each: from a config to a run folder."""

from apiece.training.tabular.config import Job, job_from_dict, read_job
from apiece.training.tabular.folder import free_folder
from apiece.training.tabular.model import TabularModel, load_model
from apiece.training.tabular.prepared import Prepared, prepare, prepare_again
from apiece.training.tabular.run import run

__all__ = [
    "Job",
    "Prepared",
    "TabularModel",
    "free_folder",
    "job_from_dict",
    "load_model",
    "prepare",
    "prepare_again",
    "read_job",
    "run",
]
