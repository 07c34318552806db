"""Tables and figures of papers, each by one command, with results that are kept."""

from apiece.reproduce.experiment import Done, Experiment, Place, Table, Unit, key
from apiece.reproduce.figures import interval, reach, signed, spread
from apiece.reproduce.pages import page, section, state
from apiece.reproduce.registry import find, load
from apiece.reproduce.store import Store, machine, missing, run

__all__ = [
    "Done",
    "Experiment",
    "Place",
    "Store",
    "Table",
    "Unit",
    "find",
    "interval",
    "key",
    "load",
    "machine",
    "missing",
    "page",
    "reach",
    "run",
    "section",
    "signed",
    "spread",
    "state",
]
