"""The page docs/results/papers.md, made from the stored results alone."""

from __future__ import annotations

from collections.abc import Sequence

from research.experiment import Done, Experiment

HEAD = """# The papers' tables and figures

Made from the stored results by `python -m research --page`: every measured figure in a table is
read from them. Published figures are beside those found; where settings differ, or a run is smaller
than the paper's, the text says so. `python -m research --list` lists the experiments, and
`python -m research NAME` runs the missing units of one.
"""


def section(experiment: Experiment, done: Sequence[Done]) -> str:
    """Return an experiment's part of the page; without results it says "not run"."""
    origin = provenance(done) if done else f"not run ({experiment.cost})."
    lines = [
        f"\n## {experiment.paper}: {experiment.shows}\n",
        f"`python -m research {experiment.name}`: {origin}",
    ]
    if done:
        lines += [f"\n{table.markdown()}" for table in experiment.tables(done)]
        if notes := experiment.notes(done):
            lines.append(f"\n{notes}")
    return "\n".join(lines) + "\n"


def provenance(done: Sequence[Done]) -> str:
    """Return the number of units that ran, their duration, their days and their machines.

    >>> provenance([Done({}, 1.0, 90.0, "a processor", "2026-01-02")])
    '1 unit, 1.5 minutes in all, 2026-01-02, on: a processor.'
    """
    durations = [entry.seconds for entry in done if entry.seconds is not None]
    days = sorted({entry.date for entry in done if entry.date})
    machines = sorted({entry.machine for entry in done if entry.machine})
    plural = "s" if len(done) > 1 else ""
    parts = [f"{len(done)} unit{plural}"]
    if durations:
        scope = "" if len(durations) == len(done) else f" of {len(durations)} of them"
        parts.append(f"{sum(durations) / 60:.1f} minutes in all{scope}")
    if days:
        parts.append(days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")
    if machines:
        parts.append(f"on: {'; '.join(machines)}")
    return ", ".join(parts) + "."


def state(done: Sequence[Done], lacks: str | None) -> str:
    """Return the progress of an experiment in words; lacks: the data that is missing, or None.

    >>> state([], None), state([Done({}, 1, None, "", "")], "no folder svhn")
    ('not run', '1 unit; no folder svhn')
    """
    text = provenance(done).rstrip(".") if done else "not run"
    return text if lacks is None else f"{text}; {lacks}"
