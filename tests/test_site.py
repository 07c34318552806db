"""The site: each page is in its navigation, each public name in its API reference."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import apiece
from browser import needs_browser, opened

ROOT = Path(__file__).parents[1]
NAVIGATION = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1])
API = {p.name: p.read_text() for p in (ROOT / "docs" / "api").glob("*.md")}
RENDERED = re.findall(r"^::: apiece\.([\w.]+)$", "\n".join(API.values()), re.MULTILINE)


def test_each_page_is_in_the_navigation_once() -> None:
    there = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert sorted(NAVIGATION) == sorted(there)


def test_each_package_is_rendered_once() -> None:
    source = ROOT / "src" / "apiece"
    named = [p.parent.name for p in source.glob("*/__init__.py") if "__all__" in p.read_text()]
    assert len(RENDERED) == len(set(RENDERED))
    assert set(named) - {"cli", "tables"} <= set(RENDERED)  # tables: of the other packages


def pages_of(name: str) -> list[str]:
    """The pages of the API on which the index's table puts a public name and which render it."""
    pages = re.findall(rf"^\| \[\w+\]\((\w+\.md)\) \|.*`{name}`", API["index.md"], re.MULTILINE)
    rendering = []
    for page in pages:
        packages = re.findall(r"^::: apiece\.([\w.]+)$", API[page], re.MULTILINE)
        listed = [importlib.import_module(f"apiece.{package}").__all__ for package in packages]
        if name in packages or any(name in names for names in listed):
            rendering.append(page)
    return rendering if rendering == pages else []


def test_each_public_name_is_under_its_verb() -> None:
    found = {name: pages_of(name) for name in apiece.__all__ if name != "__version__"}
    lost = {name: pages for name, pages in found.items() if len(pages) != 1}
    assert lost == {}, "name each once in the table of docs/api/index.md"
    assert pages_of("clip_and_sums") == []


def test_what_the_reference_renders_has_public_names() -> None:
    for package in RENDERED:
        module = importlib.import_module(f"apiece.{package}")
        assert all(hasattr(module, name) for name in module.__all__)


def test_nothing_is_fetched_from_elsewhere() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "\n  font: false\n" in settings
    assert "strict: true" in settings
    assert not re.findall(r"https?://", settings + (ROOT / "docs/_site/site.css").read_text())


TOLD = """<script>addEventListener("load", () => parent.postMessage(Math.max(
document.documentElement.scrollWidth, ...[...document.querySelectorAll("table:not([class])")].map(
table => table.scrollWidth + table.getBoundingClientRect().left)), "*"))</script>"""
FRAME = """<iframe src="PAGE" style="width:390px;height:3000px"></iframe><p></p><script>
addEventListener("message", told => document.querySelector("p").textContent = told.data)</script>"""


def width_on_a_phone(page: Path, more: str = "") -> float:
    """Return how wide a page and its widest table are on a screen of 390 pixels."""
    page.with_name("told.html").write_text(page.read_text() + more + TOLD)
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.replace("PAGE", "told.html"))
    shown, _ = opened(frame)
    return float(re.findall(r"<p>([\d.]+)</p>", shown)[0])


@needs_browser
@pytest.mark.slow
def test_home_is_whole_on_a_phone(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    words = ["-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=True)
    assert width_on_a_phone(tmp_path / "index.html") <= 390
    wide = '<div style="width:600px">wide</div>'
    assert width_on_a_phone(tmp_path / "index.html", wide) > 390
