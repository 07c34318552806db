"""The contributor's page: every combination shows its own counts, and nothing is loaded."""

import json
import re
import tomllib
from html import unescape
from pathlib import Path

import pytest

from apiece import reporting
from apiece.contract import Choices, explain
from apiece.contract.explain import LIMITS, Participation
from apiece.errors import InputError
from apiece.reporting import Report
from apiece.reporting.catalogue import LANGUAGES, translate
from apiece.reporting.pages import contributor_page
from tests.browser import loads, needs_browser, opened
from tests.sample_choices import sample_choices

PAGES = Path(reporting.__file__).parent
HOSTILE = "weak</script><b>\u202e"
# Clicks through all combinations and writes down what the page then says.
CLICKS = """<script>
const said = [];
for (const b of form.elements.budget)
  for (const o of form.elements.others) {
    b.click(); o.click();
    said.push([b.value, o.value, at("right").textContent, at("guaranteed").textContent,
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
    return contributor_page(found, "hybrid")


def test_names_are_text_and_nothing_is_loaded(page: Report) -> None:
    assert HOSTILE not in page.html
    assert page.html.count("</script>") == 2
    assert loads(page.html) == []
    assert "default-src 'none'" in page.html


def test_the_tables_say_all_counts(page: Report, found: Choices) -> None:
    cells = re.findall(r"<td>(\d+) \((\d+)\)</td>", page.html)
    assert sorted(cells) == sorted(
        (str(o.explanation.frequencies.right), str(o.more))
        for o in found.outcomes
        if o.strategy == "hybrid"
    )


def test_the_strictest_is_offered_first(page: Report) -> None:
    (checked,) = re.findall(r'name="budget" value="(\d)" checked', page.html)
    assert checked == "0"


def test_the_script_looks_up_what_the_choices_are(page: Report, found: Choices) -> None:
    """Of each budget and choice of the others; seen without a browser too."""
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.html, re.DOTALL
    )
    data = json.loads(text)
    of_page = [one for one in found.outcomes if one.strategy == "hybrid"]
    assert len(data["outcomes"]) == len(of_page)
    for one in of_page:
        others = "" if one.others is None else one.others
        entry = data["outcomes"][f"{one.budget} {others}"]
        assert entry["right"] == one.explanation.frequencies.right
        assert entry["more"] == one.more
        assert len(entry["sentences"]) == len(one.sentences)
    assert data["guaranteed"] == [found.guaranteed(budget, "hybrid") for budget in (0, 1)]
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
    assert len(shown) == len(found.outcomes) / 2
    for budget, others, right, guaranteed, rows, facts in shown:
        (one,) = [
            o
            for o in found.outcomes
            if (o.strategy, str(o.budget)) == ("hybrid", budget)
            and ("" if o.others is None else str(o.others)) == others
        ]
        assert int(right) == one.explanation.frequencies.right
        assert int(guaranteed) == found.guaranteed(one.budget, "hybrid")
        assert rows == 10 + -(-(int(right) - 500) // 50)
        assert facts == len(one.explanation.sentences)


@needs_browser
def test_a_broken_page_is_noticed(page: Report, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page.html.replace('id="right"', 'id="wrong"'))
    assert "TypeError" in " ".join(opened(path)[1])


def test_strategies_are_not_a_contributor_s_to_choose(found: Choices, page: Report) -> None:
    assert 'name="strategy"' not in page.html
    assert "δ = 1 in 100,000" in page.html
    assert not re.search(r"\de-\d", page.html)  # no number is a power
    sample = contributor_page(found).html  # the first
    assert "A bound on the excess" not in sample
    assert "A bound on the excess" in page.html
    with pytest.raises(InputError, match="strategy"):
        contributor_page(found, "uniform")


def test_where_others_move_nothing_they_are_not_asked_about() -> None:
    still = sample_choices(("strict", "weak"), ("scale",), moves=False)
    html = contributor_page(still).html
    assert 'name="others"' not in html
    assert "What others choose does not move the counts." in html


@needs_browser
def test_a_page_without_others_works(tmp_path: Path) -> None:
    still = sample_choices(("strict", "weak"), ("scale",), moves=False)
    path = tmp_path / "page.html"
    path.write_text(contributor_page(still).html)
    dom, console = opened(path)
    assert console == []
    right = still.outcomes[0].explanation.frequencies.right
    assert f'<b id="right">{right}</b>' in dom


def texts_of(html: str) -> str:
    """Return what a page says, its tags left out and its script's words with it."""
    return unescape(re.sub(r"<(?!/script>|script)[^>]*>", "", html))


def test_every_text_of_the_page_is_in_every_language() -> None:
    choices_by_strategy = {
        strategy: sample_choices(("strict", "weak"), (strategy,))
        for strategy in ("scale", "epochs", "sample", "hybrid", "allocate")
    }
    still = sample_choices(("strict", "weak"), ("scale",), moves=False)
    entries = tomllib.loads((PAGES / "catalogue.toml").read_text(encoding="utf-8"))["text"]
    of_the_page = [e for e in entries if e["of"].startswith("choose.") or e["of"] in LIMITS]
    assert len(of_the_page) > 40
    for language in LANGUAGES:
        shown = "".join(
            texts_of(contributor_page(choices, language=language).html)
            for choices in (*choices_by_strategy.values(), still)
        )
        for entry in of_the_page:
            if "{" not in entry[language]:
                assert entry[language] in shown, f"never shown in {language}: {entry['of']}"


def test_a_german_page_has_no_english_and_the_same_counts(found: Choices, page: Report) -> None:
    german = contributor_page(found, "hybrid", "de").html
    assert '<html lang="de">' in german
    counts = re.findall(r"<td>(\d+) \((\d+)\)</td>", page.html)
    assert re.findall(r"<td>(\d+) \((\d+)\)</td>", german) == counts
    for words in ("people", "the others", "attacker", "budget means", "What is"):
        assert words not in texts_of(german)
    assert "1 zu 100.000" in german
    with pytest.raises(InputError, match="language"):
        contributor_page(found, "hybrid", "fr")


@pytest.mark.parametrize("taking_part", [None, Participation(3, 40, True, 0),
                                         Participation(2, 40, False, 5)])  # fmt: skip
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_every_sentence_of_an_explanation_is_in_the_catalogue(
    delta: float, taking_part: Participation | None
) -> None:
    explanation = explain(1.0, delta, taking_part=taking_part)
    for sentence in (*explanation.sentences, *explanation.limits):
        assert translate(sentence, "en") == sentence
        german = translate(sentence, "de")
        numbers = sorted(re.findall(r"\d[\d,]*", sentence))
        assert sorted(re.findall(r"\d[\d.]*(?<!\.)", german)) == sorted(
            number.strip(",").replace(",", ".") for number in numbers
        )
