"""The contributor's page: every combination shows its own counts, and nothing is loaded."""

import json
import re
from pathlib import Path

import pytest

from apiece.contract import Choices
from apiece.reporting import Report
from apiece.reporting.pages import contributor_page
from tests.browser import loads, needs_browser, opened
from tests.sample_choices import sample_choices

HOSTILE = "weak</script><b>\u202e"
# Clicks through all combinations and writes down what the page then says.
CLICKS = """<script>
const said = [];
for (const s of form.elements.strategy) for (const b of form.elements.budget)
  for (const o of form.elements.others) {
    s.click(); b.click(); o.click();
    said.push([s.value, b.value, o.value, at("right").textContent, at("guaranteed").textContent,
      document.querySelectorAll("#dots rect").length, at("facts").children.length]);
  }
document.body.append(Object.assign(document.createElement("pre"),
  {id: "said", textContent: JSON.stringify(said)}));
</script>"""


@pytest.fixture(scope="module")
def found() -> Choices:
    return sample_choices(("strict", HOSTILE), ("sample", "hybrid"))


@pytest.fixture(scope="module")
def page(found: Choices) -> Report:
    return contributor_page(found)


def test_names_are_text_and_nothing_is_loaded(page: Report) -> None:
    assert HOSTILE not in page.html
    assert page.html.count("</script>") == 2
    assert loads(page.html) == []
    assert "default-src 'none'" in page.html


def test_the_tables_say_all_counts(page: Report, found: Choices) -> None:
    cells = re.findall(r"<td>(\d+) \((\d+)\)</td>", page.html)
    assert sorted(cells) == sorted(
        (str(o.explanation.frequencies.right), str(o.more)) for o in found.outcomes
    )


def test_the_strictest_is_offered_first(page: Report) -> None:
    (checked,) = re.findall(r'name="budget" value="(\d)" checked', page.html)
    assert checked == "0"


def test_the_script_looks_up_what_the_choices_are(page: Report, found: Choices) -> None:
    """Of each strategy, budget and choice of the others; seen without a browser too."""
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.html, re.DOTALL
    )
    data = json.loads(text)
    assert len(data["outcomes"]) == len(found.outcomes)
    for one in found.outcomes:
        others = "" if one.others is None else one.others
        entry = data["outcomes"][f"{one.strategy} {one.budget} {others}"]
        assert entry["right"] == one.explanation.frequencies.right
        assert entry["more"] == one.more
        assert len(entry["sentences"]) == len(one.sentences)
    strategies = {one.strategy for one in found.outcomes}
    assert data["guaranteed"] == {
        f"{strategy} {budget}": found.guaranteed(budget, strategy)
        for strategy in strategies
        for budget in range(len(found.names))
    }
    assert data["promised"] == [promise.frequencies.right for promise in found.promises]


@needs_browser
@pytest.mark.parametrize("width", [1200, 390])
def test_each_combination_shows_its_counts(
    page: Report, found: Choices, width: int, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(page.html.replace("</body>", f"{CLICKS}</body>"))
    dom, console = opened(path, width=width)
    assert console == []
    (text,) = re.findall(r'<pre id="said">(.*?)</pre>', dom)
    shown = json.loads(text)
    assert len(shown) == len(found.outcomes)
    for strategy, budget, others, right, guaranteed, rows, facts in shown:
        (one,) = [
            o
            for o in found.outcomes
            if (o.strategy, str(o.budget)) == (strategy, budget)
            and ("" if o.others is None else str(o.others)) == others
        ]
        assert int(right) == one.explanation.frequencies.right
        assert int(guaranteed) == found.guaranteed(one.budget, strategy)
        assert rows == 10 + -(-(int(right) - 500) // 50)
        assert facts == len(one.explanation.sentences)


@needs_browser
def test_a_broken_page_is_noticed(page: Report, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page.html.replace('id="right"', 'id="wrong"'))
    assert "TypeError" in " ".join(opened(path)[1])
