"""Training on a table of people with a budget each: from a config to a run folder."""

from apiece.training.tabular.config import Job, job_from_dict, read_job
from apiece.training.tabular.folder import free_folder
from apiece.training.tabular.model import TabularModel, load_model
from apiece.training.tabular.run import Prepared, prepare, run

__all__ = [
    "Job",
    "Prepared",
    "TabularModel",
    "free_folder",
    "job_from_dict",
    "load_model",
    "prepare",
    "read_job",
    "run",
]
