"""The page docs/results/papers.md, made from the stored results alone."""

from __future__ import annotations

from collections.abc import Sequence

from research.experiment import Experiment, Outcome

HEAD = """# The papers' tables and figures

Made from the stored results by `python -m research --page`: every measured figure in a table is
read from them. Published figures are beside those found; where settings differ, or a run is smaller
than the paper's, the text says so. `python -m research --list` lists the experiments, and
`python -m research NAME` runs the missing units of one; `research/README.md` says what each reads.
"""


def format_section(experiment: Experiment, outcomes: Sequence[Outcome]) -> str:
    """Return an experiment's part of the page; without results it says "not run"."""
    origin = format_provenance(outcomes) if outcomes else f"not run ({experiment.cost})."
    lines = [
        f"\n## {experiment.paper}: {experiment.shows}\n",
        f"`python -m research {experiment.name}`: {origin}",
    ]
    if outcomes:
        lines += [f"\n{table.markdown()}" for table in experiment.tables(outcomes)]
        if notes := experiment.notes(outcomes):
            lines.append(f"\n{notes}")
    return "\n".join(lines) + "\n"


def format_provenance(outcomes: Sequence[Outcome]) -> str:
    """Return the number of units that ran, their duration, their days and their machines.

    >>> format_provenance([Outcome({}, 1.0, 90.0, "a processor", "2026-01-02")])
    '1 unit, 1.5 minutes in all, 2026-01-02, on: a processor.'
    """
    days = sorted({outcome.date for outcome in outcomes if outcome.date})
    machines = sorted({outcome.machine for outcome in outcomes if outcome.machine})
    parts = [format_duration(outcomes)]
    if days:
        parts.append(days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")
    if machines:
        parts.append(f"on: {'; '.join(machines)}")
    return ", ".join(parts) + "."


def format_duration(outcomes: Sequence[Outcome]) -> str:
    """Return the number of units that ran and their duration; "" for none.

    >>> format_duration([Outcome({}, 1.0, 90.0, "", ""), Outcome({}, 1.0, None, "", "")])
    '2 units, 1.5 minutes in all of 1 of them'
    """
    if not outcomes:
        return ""
    durations = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    text = f"{len(outcomes)} unit{'s' if len(outcomes) > 1 else ''}"
    if durations:
        text += f", {sum(durations) / 60:.1f} minutes in all"
        if len(durations) < len(outcomes):
            text += f" of {len(durations)} of them"
    return text


def describe_state(outcomes: Sequence[Outcome]) -> str:
    """Return the progress of an experiment in words.

    >>> describe_state([]), describe_state([Outcome({}, 1, None, "", "")])
    ('not run', '1 unit')
    """
    return format_provenance(outcomes).rstrip(".") if outcomes else "not run"
