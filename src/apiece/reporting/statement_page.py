"""The statement of a run as one page of PDF, for an officer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apiece._text import plain
from apiece.errors import UnsupportedError

if TYPE_CHECKING:
    from fpdf import FPDF

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
        >>> from apiece.jobs import Facts, Run, Trained, statement_of
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
