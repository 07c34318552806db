"""The page of results, made from what is stored beside what was published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from apiece.reproduce.experiment import Done, Experiment

HEAD = """# The papers' tables and figures

Made from the stored results by `apiece reproduce --page`: no figure on this page is typed. What is
published is beside what was found; where settings differ, or a run is smaller than the paper's, the
text says so. `apiece reproduce --list` lists the experiments, and `apiece reproduce NAME` runs what
is missing of one.
"""


def page(results: Iterable[tuple[Experiment, Sequence[Done]]]) -> str:
    """Return the page in Markdown.

    Args:
        results: Each experiment with what is done of it, in order.

    Example:
        >>> page([]) == HEAD
        True
    """
    return HEAD + "".join(section(experiment, done) for experiment, done in results)


def section(experiment: Experiment, done: Sequence[Done]) -> str:
    """Return an experiment's part of the page.

    Args:
        experiment: Which.
        done: Its results; without any it says "not run".

    Example:
        >>> half = Experiment(name="half", paper="Nobody", shows="Table 0", cost="an hour",
        ...                   units=lambda seeds, scale: [{}], run=lambda unit, place: 0.5,
        ...                   tables=lambda done: [])
        >>> print(section(half, []).strip())
        ## Nobody: Table 0
        <BLANKLINE>
        `apiece reproduce half`: not run (an hour).
    """
    made = provenance(done) if done else f"not run ({experiment.cost})."
    lines = [
        f"\n## {experiment.paper}: {experiment.shows}\n",
        f"`apiece reproduce {experiment.name}`: {made}",
    ]
    if not done:
        return "\n".join(lines) + "\n"
    lines += [f"\n{table.markdown()}" for table in experiment.tables(done)]
    notes = experiment.notes(done)
    return "\n".join(lines + ([f"\n{notes}"] if notes else [])) + "\n"


def provenance(done: Sequence[Done]) -> str:
    """Return how many units ran, for how long, when, and on what.

    Args:
        done: At least one.

    Example:
        >>> provenance([Done({}, 1.0, 90.0, "a processor", "2026-01-02")])
        '1 unit, 1.5 minutes in all, 2026-01-02, on: a processor.'
    """
    clock = [one.seconds for one in done if one.seconds is not None]
    days = sorted({one.date for one in done if one.date})
    parts = [f"{len(done)} unit{'s' * (len(done) > 1)}"]
    if clock:
        of = "" if len(clock) == len(done) else f" of {len(clock)} of them"
        parts.append(f"{sum(clock) / 60:.1f} minutes in all{of}")
    if days:
        parts.append(days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")
    machines = "; ".join(sorted({one.machine for one in done if one.machine}))
    return ", ".join([*parts, *([f"on: {machines}"] if machines else [])]) + "."


def state(done: Sequence[Done], lacks: str | None) -> str:
    """Return in a few words how far an experiment is.

    Args:
        done: Of it.
        lacks: What data is missing, or None.

    Example:
        >>> state([], None), state([Done({}, 1, None, "", "")], "no folder svhn")
        ('not run', '1 unit; no folder svhn')
    """
    text = f"{len(done)} unit{'s' * (len(done) > 1)}" if done else "not run"
    return text if lacks is None else f"{text}; {lacks}"
