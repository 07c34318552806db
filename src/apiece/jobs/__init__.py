"""The main job: from a table of people with a budget each, and a config, to a run folder."""

from apiece.jobs.config import Job, job_from_dict, read_job
from apiece.jobs.folder import free_folder
from apiece.jobs.model import TabularModel, load_model
from apiece.jobs.people import People, Records, read_people
from apiece.jobs.prepared import Prepared, prepare, prepare_again
from apiece.jobs.run import run

__all__ = [
    "Job",
    "People",
    "Prepared",
    "Records",
    "TabularModel",
    "free_folder",
    "job_from_dict",
    "load_model",
    "prepare",
    "prepare_again",
    "read_job",
    "read_people",
    "run",
]
