"""report: what was planned, run or found → a page that stands alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apiece._files import PAGE, write
from apiece._text import plain, rounded_up, shown
from apiece._types import Json
from apiece.contract import Choices
from apiece.errors import UnsupportedError, unknown
from apiece.reporting.closing import release_title, spent_text
from apiece.reporting.declared import Subject, require_no_objections, subject_of
from apiece.reporting.sections import EDITIONS, left_out, sections_of

if TYPE_CHECKING:
    from apiece.audit import Findings
    from apiece.jobs import Run
    from apiece.plan import Plan
if TYPE_CHECKING:
    from fpdf import FPDF


def render(subject: Subject, edition: str) -> str:
    """Return the page.

    It loads nothing from anywhere: style and figures are in it. Every text from the data is
    escaped. A section is given what it reads, and nothing else.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("apiece.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "spent": spent_text,
        "percent": _percent,
        "rounded_up": rounded_up,
        "release_title": release_title,
        "share": _share,
    }
    declared = subject.declared
    sections = [
        (section, Markup(environment.get_template(f"{section.name}.html.j2").render(
            context, declared=declared)))
        for section, context in sections_of(subject, edition)
    ]  # fmt: skip
    return environment.get_template("page.html.j2").render(
        declared=declared,
        edition=edition,
        sections=sections,
        left_out=left_out(subject, edition),
    )


def _shown(value: Any) -> Any:
    """Make what a page shows plain; figures, which are marked up already, stay as they are."""
    return plain(value) if type(value) is str else value


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _share(found: Any) -> str:
    """Return a share with its interval, in per cent."""
    if found is None:
        return "nobody"
    return f"{100 * found.value:.1f} % [{100 * found.lower:.1f}, {100 * found.upper:.1f}]"


@dataclass(frozen=True, slots=True)
class Report:
    """One self-contained HTML page: it loads nothing from anywhere.

    Attributes:
        html: The page.

    Example:
        >>> Report("<p>One page</p>")
        Report(15 characters)
    """

    html: str

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all, and return the path.

        Args:
            path: Of the file, which ends in .html. Of what is there only a page that apiece wrote
                is replaced.

        Returns:
            The same path.

        Raises:
            DataError: Where it cannot be written, or would take the place of something else.
        """
        write(path, self.html, PAGE)
        return Path(path)

    def __repr__(self) -> str:
        """Return the size; the page speaks for itself."""
        return f"Report({len(self.html)} characters)"

    def _repr_html_(self) -> str:
        return self.html


def report(
    value: Plan | Run | Findings,
    *,
    edition: str = "internal",
    levels: Sequence[tuple[float, float]] = (),
) -> Report:
    """Return the page of a plan, a run or what an audit found.

    The internal edition is for the steward: it has accuracy on held-out people without noise, and
    how many chose which budget. Names from the data are escaped. The same value gives the same
    page, to the byte.

    Args:
        value: A plan, a finished run such as `Run.load(folder)`, or findings of an audit.
        edition: "internal", or "public".
        levels: For a plan, the pairs (ε, δ) that people could choose from, which a public edition
            may then name. A run has those of its config.

    Raises:
        InputError: For anything else, levels that a plan's budgets are not among, and a public
            edition of a plan with objections.

    Guarantee:
        A public edition is a function of what was declared before anybody's data were read, and of
        what was released with noise. Two tables that differ in anyone's rows or budget give the
        same bytes, as long as the same was declared of them and neither is refused. It lists what
        it leaves out, and why. Of public data nothing has to be left out.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> "100" in report(plan).html, "ε = 2" in report(plan, edition="public").html
        (True, False)
        >>> "ε = 2" in report(plan, edition="public", levels=[(2.0, 1e-5), (4.0, 1e-5)]).html
        True
    """
    if edition not in EDITIONS:
        raise unknown("edition", edition, EDITIONS)
    subject = subject_of(value, levels)
    if edition == "public":
        require_no_objections(subject)
    return Report(render(subject, edition))


_SIZES = (10.0, 9.0, 8.0, 7.0, 6.0)  # points: the largest at which all is on one page
_LEVELS = 12  # shown; all are in statement.json
_LONGEST = 300  # characters of a text that somebody wrote
_INK, _QUIET = (28, 39, 51), (86, 99, 111)


def statement_pdf(statement: Mapping[str, Any]) -> bytes:
    """Return a statement as a PDF of one page, A4; the same statement gives the same bytes.

    Args:
        statement: Of `jobs.statement_of`.

    Raises:
        UnsupportedError: Where it does not fit on a page.
        ModuleNotFoundError: Without fpdf2, which the extra `pdf` has.

    References:
        Near et al. 2025: the questions that it answers.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.jobs import Run, statement_of
        >>> from apiece.jobs.trained import Facts, Trained
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> facts = Facts("people.csv", False, "income", ("low", "high"), "adult", 3, 100, 0, None,
        ...               False)
        >>> found = Trained("scale", plan, {}, None, (), 1.0)
        >>> run = Run("1.0", "first", facts, "scale", (), None, None, None, (found,), 1, ())
        >>> statement_pdf(statement_of(run))[:5]
        b'%PDF-'
    """
    from fpdf.fonts import TTFFont

    for size in _SIZES:
        document = _drawn(statement, size)
        try:
            if document.pages_count == 1:
                return bytes(document.output())
        finally:
            for font in document.fonts.values():
                if isinstance(font, TTFFont):
                    font.close()
    raise UnsupportedError("statement: does not fit on one page; shorten the purpose")


def _drawn(statement: Mapping[str, Any], size: float) -> FPDF:
    from fpdf import FPDF
    from matplotlib import get_data_path

    document = FPDF(format="A4", unit="mm")
    day = statement["finished"] or "2000-01-01"  # without a day, any: the page then names none
    document.set_creation_date(datetime.fromisoformat(day).replace(tzinfo=UTC))
    document.set_title("Privacy statement")
    document.set_creator("apiece statement")
    document.set_lang("en")
    fonts = Path(get_data_path()) / "fonts" / "ttf"
    document.add_font("page", "", fonts / "DejaVuSans.ttf")
    document.add_font("page", "B", fonts / "DejaVuSans-Bold.ttf")
    document.set_margins(16, 13)
    document.set_auto_page_break(auto=True, margin=12)
    document.add_page()
    _head(document, statement, size)
    for question, answers in _answers(statement):
        _question(document, question, answers, size)
    return document


def _head(document: FPDF, statement: Mapping[str, Any], size: float) -> None:
    document.set_text_color(*_INK)
    document.set_font("page", "B", size + 5)
    label = _cut(statement["data"]["label"])
    _write(document, f"Privacy statement: a model that predicts “{label}”", size + 5)
    document.set_font("page", "", size + 1)
    if statement["purpose"]:
        _write(document, _cut(statement["purpose"]), size + 1)
    document.set_text_color(*_QUIET)
    day = f"Made on {statement['finished']}. " if statement["finished"] else ""
    standing = (
        "" if statement["for_release"] else "An experiment: this model must not be released. "
    )
    _write(document, f"{day}{standing}Nothing on this page was computed from anybody’s data.",
           size + 1)  # fmt: skip
    document.ln(1)


def _answers(statement: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    unit, near, promise = (
        statement[name] for name in ("unit_of_privacy", "neighbouring", "guarantee")
    )
    mechanism, trust = statement["mechanism"], statement["trust"]
    yield "Whose presence is hidden? (unit of privacy)", [f"{unit['means']}."]
    yield "Between which data? (neighbouring relation)", [f"{near['means']} ({near['relation']})."]
    yield (
        "How well? (ε and δ)",
        [f"{promise['definition']}, for {promise['of']}.", *_levels(promise)],
    )
    yield "What does it add up to with other results?", [f"{promise['composition']}."]
    yield "Is it kept?", [f"{promise['verified']}."]
    yield (
        "By what? (mechanism)",
        [
            f"{mechanism['name']}. {mechanism['sampling']}. Strategy {mechanism['strategy']}, "
            f"accounting {mechanism['accounting']}, noise from the {mechanism['randomness']}; "
            f"models trained: {mechanism['models_trained']}, "
            f"{'charged to a ledger' if mechanism['ledger'] else 'no ledger charged'}."
        ],
    )
    yield "What is covered?", _listed(statement["covered"])
    yield "What is not covered?", _listed(statement["not_covered"])
    yield f"Who is trusted? ({trust['model']} model)", _listed(trust["trusted"])
    yield "Who is not?", _listed(trust["not_trusted"])
    yield "What is assumed?", _listed(statement["assumptions"])
    versions = ", ".join(f"{name} {number}" for name, number in statement["versions"].items())
    yield (
        "Made with",
        [f"Versions: {_cut(versions)}. For machines the same is in statement.json and model.pt."],
    )
    yield "Whose word is it, and on which model?", _word(statement)


def _word(statement: Mapping[str, Any]) -> list[str]:
    bound = statement["bound_to"]
    if bound is None:
        return ["It is bound to no model: of a run that is in no folder."]
    of = f"Weights: SHA-256 {bound['weights']}."
    ledger = f" Ledger: head {bound['ledger']}." if bound["ledger"] else ""
    return [f"{bound['signature']}. {of}{ledger}"]


def _levels(promise: Mapping[str, Any]) -> list[str]:
    """Return a line for each declared budget, of the first ones."""
    levels = promise["levels"]
    told = [
        f"•  {_name(level)}ε = {level['epsilon']:g}, δ = {level['delta']:g}. Of 1,000 "
        f"people, 500 of whom took part, a guess is right about at most "
        f"{level['right_of_1000_at_most']:,}.{_gaussian(level['gaussian'])}"
        for level in levels[:_LEVELS]
    ]
    if len(levels) > _LEVELS:
        told.append(f"•  and {len(levels) - _LEVELS} more, in statement.json")
    if not levels:
        told = ["Which budgets people could choose was not declared; those that they chose are not "
                "told."]  # fmt: skip
    if promise["no_limit_cap"] is not None:
        told.append(f"•  who set no limit: ε = {promise['no_limit_cap']:g}")
    return told


def _gaussian(summary: Mapping[str, float] | None) -> str:
    """Return the Gaussian that stands for a level, where it is told; rounded up."""
    if summary is None:
        return ""
    mu = math.ceil(summary["mu"] * 1e4) / 1e4
    return (
        f" As a Gaussian: μ = {mu:g}, slack {summary['slack']:g}, regret {summary['regret']:.2g}."
    )


def _name(level: Mapping[str, Any]) -> str:
    """Return the name that a level has of its own."""
    plain_name = f"ε = {level['epsilon']:g}"
    return "" if level["name"] == plain_name else f"{_cut(level['name'], 40)}: "


def _listed(texts: list[str]) -> list[str]:
    return [f"•  {text}" for text in texts]


def _question(document: FPDF, question: str, answers: list[str], size: float) -> None:
    document.ln(size * 0.13)
    document.set_text_color(*_INK)
    document.set_font("page", "B", size)
    _write(document, question, size)
    document.set_font("page", "", size)
    for answer in answers:
        _write(document, answer[:1].upper() + answer[1:], size)


def _write(document: FPDF, text: str, size: float) -> None:
    """Write lines; a character that the font does not have is shown as its escape."""
    known = document.fonts["page"].cmap  # type: ignore[union-attr]  # a font of a file
    shown = "".join(c if ord(c) in known else ascii(c)[1:-1] for c in plain(text))
    document.multi_cell(0, size * 0.46, shown, align="L", new_x="LMARGIN", new_y="NEXT")


def _cut(text: str, most: int = _LONGEST) -> str:
    shown = plain(text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


WAYS = {
    "scale": (
        "Everyone is used equally often, and the smaller your budget, the less weight your data "
        "have. What the others choose changes nothing for you."
    ),
    "sample": (
        "The smaller your budget, the less often your data are used. How often depends on what "
        "the others choose: so does what an attacker can do."
    ),
    "hybrid": (
        "As Sample, but what the others choose may make an attacker right about at most {most} "
        "more of 1,000 people than if everybody had your budget."
    ),
}


def contributor_page(choices: Choices) -> Report:
    """Return the page on which a contributor compares the budgets on offer.

    It loads nothing from anywhere and sends nothing; every count on it was made by
    `contract.choices`. Without JavaScript and in print it shows tables of all counts.

    Args:
        choices: Of `contract.choices`.

    Guarantee:
        Counts are rounded up, since they are upper bounds.

    Example:
        >>> from apiece.assignment import Sample
        >>> from apiece.contract import choices
        >>> offered = [("strict", 1.0, 0.5), ("weak", 3.0, 0.5)]
        >>> found = choices(offered, records=100, delta=1e-5, steps=1, expected_batch_size=10,
        ...                 bound=0.02, strategies=[Sample()])
        >>> "strict" in contributor_page(found).html
        True
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("apiece.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    strategies = list(dict.fromkeys(outcome.strategy for outcome in choices.outcomes))
    return Report(
        environment.get_template("contributor.html.j2").render(
            choices=choices,
            strategies=strategies,
            ways={name: WAYS.get(name, "").format(most=choices.most) for name in strategies},
            others=_choices_of_others(choices),
            outcomes={(o.strategy, o.budget, o.others): o for o in choices.outcomes},
            data=_lookup(choices, strategies),
        )
    )


def _choices_of_others(choices: Choices) -> list[tuple[int | None, str]]:
    """Return what the others may choose, in words."""
    expected = ", ".join(
        f"{share:.0%} “{plain(name)}”"
        for name, share in zip(choices.names, choices.shares, strict=True)
    )
    everyone = [(h, f"all others choose “{plain(name)}”") for h, name in enumerate(choices.names)]
    return [(None, f"as is expected: {expected}"), *everyone]


def _lookup(choices: Choices, strategies: list[str]) -> Json:
    """Return what the page's script looks up; it computes nothing itself."""
    return {
        "outcomes": {
            f"{o.strategy} {o.budget} {'' if o.others is None else o.others}": {
                "right": o.explanation.frequencies.right,
                "more": o.more,
                "sentences": [plain(s) for s in o.explanation.sentences],
            }
            for o in choices.outcomes
        },
        "guaranteed": {
            f"{name} {g}": choices.guaranteed(g, name)
            for name in strategies
            for g in range(len(choices.names))
        },
        "promised": [promise.frequencies.right for promise in choices.promises],
    }
