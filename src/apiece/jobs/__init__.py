"""The main job: from a table of people with a budget each, and a config, to a run folder.

What needs torch is loaded when it is first asked for, so that commands start at once.
"""

from typing import TYPE_CHECKING

from apiece import _lazy
from apiece.jobs.config import Job, job_from_dict, read_job
from apiece.jobs.people import Records, read_people
from apiece.jobs.results import (
    Run,
    statement_of,
    statement_schema,
    totalled,
)
from apiece.jobs.trained import (
    Facts,
    Interval,
    Level,
    Promise,
    Release,
    Trained,
    promises_of,
)

if TYPE_CHECKING:
    from apiece.jobs.model import Amount, Classes, TabularModel, Target, build, load_model
    from apiece.jobs.prepared import Prepared, prepare, prepare_again
    from apiece.jobs.running import run, student

__all__ = [
    "Amount",
    "Classes",
    "Facts",
    "Interval",
    "Job",
    "Level",
    "Prepared",
    "Promise",
    "Records",
    "Release",
    "Run",
    "TabularModel",
    "Target",
    "Trained",
    "build",
    "job_from_dict",
    "load_model",
    "prepare",
    "prepare_again",
    "promises_of",
    "read_job",
    "read_people",
    "run",
    "statement_of",
    "statement_schema",
    "student",
    "totalled",
]
__getattr__ = _lazy.names_of(
    __name__,
    {
        "model": ("Amount", "Classes", "TabularModel", "Target", "build", "load_model"),
        "prepared": ("Prepared", "prepare", "prepare_again"),
        "running": ("run", "student"),
    },
)
