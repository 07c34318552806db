"""The sections of a page: one table says what each reads, and so in which editions it stands.

A section that reads "declared" alone is handed nothing else, whatever its template says, so that
a public edition cannot hold what it was not given. Every other section is for the steward, unless
what it reads is open: released with noise, or of public data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from apiece.reporting import tables
from apiece.reporting.declared import Subject

EDITIONS = ("internal", "public")
DECLARED = "declared"
# What a section reads → why it is in no public edition.
READS = {
    DECLARED: "",
    "budgets": (
        "It follows from how many people chose which budget. It is public where these numbers "
        "were released with noise, and the plan was made from those (release_histogram)."
    ),
    "held out": "It is computed from held-out people, without noise.",
    "members": "It is computed from who was trained on.",
    "table": (
        "It describes the table itself: its size, and a hash by which whoever guesses the whole "
        "table can confirm the guess."
    ),
}
Context = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page.

    Attributes:
        name: Of its template, and of its place on the page.
        title: Of it.
        of: The kinds of subject that it can be of.
        reads: One of `READS`.
        tell: From `Declared`, where that is all it reads, or else from the `Subject`: what its
            template shows; None where there is nothing to show.
        instead: Whether it stands for sections that a public edition leaves out, and so only there.

    Example:
        >>> Section("made", "How it was made", ("run",), "declared", lambda declared: {}).reads
        'declared'
    """

    name: str
    title: str
    of: tuple[str, ...]
    reads: str
    tell: Callable[[Any], Context | None]
    instead: bool = False


_RUN, _PLANNED, _AUDIT = ("run",), ("run", "plan"), ("findings",)
_ALL = (*_PLANNED, *_AUDIT)
SECTIONS = (
    Section("standing", "Whether it is fit for release", _RUN, "budgets", tables.standing),
    Section("promise", "What was promised", _PLANNED, DECLARED, tables.promise, instead=True),
    Section("spent", "What was promised, and what was spent", _PLANNED, "budgets", tables.spent),
    Section("meaning", "What this means for one person", _PLANNED, "budgets", tables.meaning),
    Section("profile", "The privacy profile", _PLANNED, "budgets", tables.profile),
    Section("contract", "Whether every contract is kept", _PLANNED, "budgets", tables.contract),
    Section("accuracy", "How good the models are", _RUN, "held out", tables.accuracy),
    Section("fit", "How well it fits each budget group", _RUN, "members", tables.fit),
    Section("influence", "How much each group moves the model", _PLANNED, "budgets",
            tables.influence),
    Section("comparison", "What a comparison costs", _RUN, "budgets", tables.comparison),
    Section("method", "How it was audited", _AUDIT, DECLARED, tables.everything),
    Section("audit", "What the audit found", _AUDIT, "members", tables.audit),
    Section("covered", "What the numbers do not cover", _PLANNED, DECLARED, tables.everything),
    Section("features", "What it learned from", _RUN, DECLARED, tables.features),
    Section("made", "How it was made", _PLANNED, DECLARED, tables.made),
    Section("rates", "Rates and noise of each group", _PLANNED, "budgets", tables.rates),
    Section("table", "The table", _RUN, "table", tables.table),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A section that a public edition leaves out, and why.

    Example:
        >>> LeftOut("The table", READS["table"]).title
        'The table'
    """

    title: str
    why: str


def shown(subject: Subject, edition: str) -> list[tuple[Section, Context]]:
    """Return the sections of an edition with what their templates show, in order."""
    found = []
    for section in SECTIONS:
        if subject.declared.of not in section.of or _why_not(section, subject, edition):
            continue
        source: Any = subject.declared if section.reads == DECLARED else subject
        context = section.tell(source)
        if context is not None:
            found.append((section, context))
    return found


def left_out(subject: Subject, edition: str) -> list[LeftOut]:
    """Return what an edition leaves out, whether or not there is anything of it."""
    return [
        LeftOut(section.title, why)
        for section in SECTIONS
        if subject.declared.of in section.of and not section.instead
        for why in [_why_not(section, subject, edition)]
        if why
    ]


def _why_not(section: Section, subject: Subject, edition: str) -> str:
    """Return why a section is not in an edition; nothing where it is."""
    closed = section.reads != DECLARED and section.reads not in subject.open
    if edition == "public":
        if section.instead and "budgets" in subject.open:
            return "the sections that it stands for are there"
        return READS[section.reads] if closed else ""
    return "it stands for sections that are there" if section.instead else ""
