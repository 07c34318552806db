"""Every work that the source or the documents cite by author and year is in docs/references.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
REFERENCES = (ROOT / "docs" / "references.md").read_text()
NAME = r"[A-Z][a-zà-žA-Z'’–-]+"
CITATION = re.compile(
    rf"({NAME}(?:,\s+{NAME})*(?:\s+and\s+{NAME}|\s+et\s+al\.)?)\s+((?:19|20)\d\d)\b"
)
NOT_AUTHORS = {"NeurIPS", "ICML", "CSF", "CCS", "ICLR", "AISTATS", "IEEE", "Security", "SP", "In"}
FILES = sorted(
    [
        *(path for of in ("src", "research") for path in (ROOT / of).rglob("*.py")),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
    ]
)


def cited(text: str) -> set[tuple[str, str]]:
    """Return (first author, year) of each citation."""
    text = re.sub(r"\s+", " ", text)
    found = {(m[1].split(",")[0].split(" ")[0], m[2]) for m in CITATION.finditer(text)}
    return {(author, year) for author, year in found if author not in NOT_AUTHORS}


ENTRIES = {
    (m[1].split(",")[0].split(" ")[0], m[2])
    for m in re.finditer(rf"- \*\*({NAME}[^*]*?) (\d{{4}})\.\*\*", re.sub(r"\s+", " ", REFERENCES))
}


def test_citations_lead_somewhere() -> None:
    lost = {
        str(path.relative_to(ROOT)): cited(path.read_text()) - ENTRIES
        for path in FILES
        if path.name != "references.md"
    }
    assert len(lost) > 250
    assert {file: works for file, works in lost.items() if works} == {}


SHORT_NAMES = re.compile(r"\bS[1-5]\b|\bmethods §")


def test_no_short_names_that_nobody_can_follow() -> None:
    found = {str(path.relative_to(ROOT)): SHORT_NAMES.findall(path.read_text()) for path in FILES}
    assert {file: names for file, names in found.items() if names} == {}
    assert SHORT_NAMES.findall("as in S3, and methods §2") == ["S3", "methods §"]


def test_the_code_that_the_mathematics_names_is_there() -> None:
    text = (ROOT / "docs" / "mathematics.md").read_text()
    named = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text)
    assert len(named) >= 12
    assert [n for n in named if not (ROOT / "src" / "apiece" / n).exists()] == []


def test_the_reader_of_citations_sees_them() -> None:
    text = "Source: Balle, Barthe, Gaboardi\n2018, Theorem 2; Nobody et al. 1901; Higham 2002."
    assert cited(text) == {("Balle", "2018"), ("Nobody", "1901"), ("Higham", "2002")}
    assert ("Nobody", "1901") not in ENTRIES
    assert len(ENTRIES) >= 40


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
        if not link.startswith("http")
    ]
    assert len(links) >= 20
    missing = [(page.name, link) for page, link in links if not (page.parent / link).exists()]
    assert missing == []
