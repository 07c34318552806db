"""The W3C's end-to-end cases for attribution, with a ledger as the keeper of every budget.

`attribution.json` holds the cases, their source and licence. What matches an impression, and how
credit is shared, is written here after the reference implementation; each deduction is charged to a
ledger, and what it admits is what enters a histogram.
python tests/reference/test_attribution.py OUT.json writes the report.
"""

import itertools
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import pytest

from apiece._types import Json
from apiece.filters import Costs
from apiece.ledger import Ledger, codec

WHOLE: Json = json.loads((Path(__file__).parent / "attribution.json").read_text())
CONFIG, CASES = WHOLE["config"], WHOLE["cases"]
DAY = 86400
EPOCH = CONFIG["privacyBudgetEpochDays"] * DAY
MONDAY = date(2020, 1, 6)
DEVICE = "device"


def charged(case: Json) -> bool:
    """Return whether a case has a conversion that has an answer: all else is checks of inputs."""
    return any(isinstance(each.get("expected"), list) for each in case["events"])


def site_of(name: str) -> str:
    """Return the site of a host: here always its last two labels."""
    return ".".join(name.split(".")[-2:])


class Book:
    """One kind of budgets for each epoch of one device: a ledger with a quota for each name."""

    def __init__(self, folder: Path, kind: str, most: int, names: Sequence[str]) -> None:
        account = CONFIG["globalPrivacyBudgetPerEpoch"]
        tables = [f'[{kind}."{each}"]\nquota = {most / account}' for each in names]
        self.kind, self.names, self.count = kind, set(names), itertools.count()
        self.ledger = Ledger.make(f"{folder}/{kind or 'whole'}.db", [DEVICE], 1.0, 1e-6)
        head = 'version = 1\nunit = "person-period"\nevery = "week"\n'
        self.ledger.set_policy(head + "\n".join(tables))
        limit = int(self.ledger.balances([DEVICE])[0][0, 0])
        self.unit = (limit // account - 1) * codec.UNIT  # of a millionth of ε, rounded down

    def take(self, epoch: int, name: str, amount: int) -> bool:
        """Charge millionths of ε in an epoch; return whether the ledger admitted it."""
        year, week, _ = (MONDAY + timedelta(weeks=epoch)).isocalendar()
        scope = {"period": f"{year}-W{week:02d}"} | ({self.kind: name} if self.kind else {})
        costs, analysis = Costs.fixed([amount * self.unit]), f"{next(self.count)}"
        return self.ledger.reserve_costs(analysis, [DEVICE], costs, scope=scope).size > 0

    def zero(self, epoch: int, name: str) -> None:
        """Charge all that is left."""
        for size in (2**k for k in range(20, -1, -1)):
            self.take(epoch, name, size)


@dataclass
class Device:
    """A browser: impressions, and three books. Budgets are in the books alone."""

    site: Book
    source: Book
    whole: Book
    impressions: list[Json] = field(default_factory=list)
    start: int | None = None
    cleared: int | None = None
    enabled: bool = True

    def epoch(self, seconds: float) -> int:
        if self.start is None:
            self.start = math.floor((seconds - CONFIG["epochStart"] * EPOCH) / 3600) * 3600
        return math.floor((seconds - self.start) / EPOCH)

    def first(self, now: int) -> int:
        earliest = self.epoch(now - CONFIG["maxLookbackDays"] * DAY)
        return earliest if self.cleared is None else max(earliest, self.epoch(self.cleared) + 1)

    def save(self, event: Json) -> None:
        own = {key: set(map(site_of, event["options"].get(key, [])))
               for key in ("conversionSites", "conversionCallers")}  # fmt: skip
        if self.enabled and "expectedError" not in event:
            self.impressions.append({"lifetimeDays": 30, "matchValue": 0, "priority": 0,
                                     **event["options"], **event, **own})  # fmt: skip

    def matching(self, event: Json, epoch: int, asked: Json) -> list[Json]:
        now, caller = event["seconds"], event.get("intermediarySite", event["site"])
        result = []
        for each in self.impressions:
            age = now - each["seconds"]
            most = min(each["lifetimeDays"], asked["lookbackDays"], CONFIG["maxLookbackDays"])
            limits = [
                (each["conversionSites"], event["site"]),
                (each["conversionCallers"], caller),
                (set(asked["matchValues"]), each["matchValue"]),
                (set(map(site_of, asked["impressionSites"])), each["site"]),
                (set(map(site_of, asked["impressionCallers"])),
                 each.get("intermediarySite", each["site"])),
            ]  # fmt: skip
            there = self.epoch(each["seconds"]) == epoch and age <= most * DAY
            if there and all(not names or name in names for names, name in limits):
                result.append(each)
        return result

    def measure(self, event: Json) -> list[float]:
        """Return the histogram of a conversion, charging each epoch by itself."""
        asked = {"epsilon": 1.0, "value": 1, "maxValue": 1, "credit": [1], "lookbackDays": 30,
                 "matchValues": [], "impressionSites": [], "impressionCallers": [],
                 **event["options"]}  # fmt: skip
        none = [0.0] * asked["histogramSize"]
        if not self.enabled:
            return none
        now, usable = event["seconds"], list[Json]()
        here = self.epoch(now)
        look = min(asked["lookbackDays"], CONFIG["maxLookbackDays"]) * DAY
        single = self.epoch(now - look) == here
        scale = 2 * asked["maxValue"] / asked["epsilon"]
        most = math.ceil(2 * asked["value"] / scale * 1e6)
        for epoch in range(self.first(now), here + 1):
            found = self.matching(event, epoch, asked)
            if not found:
                continue
            own = math.ceil(sum(shared(found, asked)) / scale * 1e6) if single else most
            sources = sorted({each["site"] for each in found})
            if self.site.take(epoch, event["site"], own):
                assert self.whole.take(epoch, "", most)  # no case comes to the safety limits
                assert all(self.source.take(epoch, each, most) for each in sources)
                usable += found
        return shared(usable, asked) if usable else none

    def clear(self, event: Json) -> None:
        now = event["seconds"]
        if event["event"] == "clearImpressionsForSite":
            self.impressions = [each for each in self.impressions if not self.leaves(each, event)]
        elif event["forgetVisits"]:
            sites = set(event["sites"])
            self.impressions = [e for e in self.impressions if sites and e["site"] not in sites]
            self.cleared = now  # nothing is given back: its epochs are not used again
        else:
            for epoch in range(self.first(now), self.epoch(now) + 1):
                for each in event["sites"]:
                    self.site.zero(epoch, each)

    def leaves(self, impression: Json, event: Json) -> bool:
        if impression.get("intermediarySite", impression["site"]) == event["site"]:
            return True
        for key in ("conversionSites", "conversionCallers"):
            if event["site"] in impression[key]:
                impression[key].discard(event["site"])
                if not impression[key]:
                    return True
        return False


def shared(impressions: Sequence[Json], asked: Json) -> list[float]:
    """Return the value shared by credit; in these cases it divides evenly."""
    newest = sorted(impressions, key=lambda e: (-e["priority"], -e["seconds"]))
    credit = asked["credit"][: len(newest)]
    result = [0.0] * asked["histogramSize"]
    for each, weight in zip(newest, credit, strict=False):
        if each["histogramIndex"] < len(result):
            result[each["histogramIndex"]] += asked["value"] * weight / sum(credit)
    return result


def wrong(case: Json, folder: Path) -> tuple[int, list[str]]:
    """Return how many conversions have an answer, and which got another one."""
    named = [each["site"] for each in case["events"] if "site" in each]
    named += [site for each in case["events"] for site in each.get("sites", [])]
    names = sorted(set(named))
    device = Device(
        Book(folder, "querier", CONFIG["perSitePrivacyBudget"], names),
        Book(folder, "source", CONFIG["impressionSiteQuotaPerEpoch"], names),
        Book(folder, "", 0, []),
    )
    answers, found = 0, []
    for event in case["events"]:
        match event["event"]:
            case "saveImpression":
                device.save(event)
            case "measureConversion" if isinstance(event["expected"], list):
                answers += 1
                if (got := device.measure(event)) != event["expected"]:
                    found.append(f"second {event['seconds']}: {got}, not {event['expected']}")
            case "enableAPI" | "disableAPI":
                device.enabled = event["event"] == "enableAPI"
            case "clearImpressionsForSite" | "clearBrowsingHistoryForAttribution":
                device.clear(event)
    for book in (device.site, device.source, device.whole):
        assert book.ledger.verify().ok
    return answers, found


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if charged(case)])
def test_a_ledger_keeps_the_budgets_as_the_draft_does(name: str, tmp_path: Path) -> None:
    assert wrong(CASES[name], tmp_path)[1] == []


BUDGETING = ["single-epoch-budgeting", "multi-epoch-budgeting", "clear-site-state"]


@pytest.mark.parametrize("name", BUDGETING)
def test_the_cases_see_a_ledger_that_keeps_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: every charge is admitted."""
    monkeypatch.setattr(Book, "take", lambda *_: True)
    assert wrong(CASES[name], tmp_path)[1]


def report() -> Json:
    """Return which cases apply and pass."""
    result: Json = {}
    for name, case in CASES.items():
        if not charged(case):
            result[name] = "does not apply: checks of the interface's inputs, nothing is charged"
            continue
        with tempfile.TemporaryDirectory() as folder:
            answers, found = wrong(case, Path(folder))
        result[name] = f"{answers - len(found)} of {answers} answers"
    return {"source": WHOLE["source"], "commit": WHOLE["commit"], "cases": result}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(report(), indent=1) + "\n")
