"""The main job: from a table of people with a budget each, and a config, to a run folder.

Each name is loaded when it is first asked for, so that commands start at once.
"""

from typing import TYPE_CHECKING

from apiece import _lazy

if TYPE_CHECKING:
    from apiece.jobs.config import Job, read_job
    from apiece.jobs.model import load_model
    from apiece.jobs.prepared import prepare
    from apiece.jobs.results import Run
    from apiece.jobs.running import run
    from apiece.jobs.search import Search
    from apiece.jobs.statement import statement_schema

__all__ = [
    "read_job", "Job", "Search", "prepare", "run", "Run", "load_model", "statement_schema",
]  # fmt: skip
__getattr__ = _lazy.names_of(
    __name__,
    {
        "config": ("Job", "read_job"),
        "model": ("load_model",),
        "prepared": ("prepare",),
        "results": ("Run",),
        "running": ("run",),
        "search": ("Search",),
        "statement": ("statement_schema",),
    },
)
