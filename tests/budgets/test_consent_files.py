"""Consents from where they are kept: what is read, what is refused, and never more than permitted.

Examples are made by hand from the specifications: FHIR R4 and R5 Consent, and DPV 2.
"""

import json
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apiece._types import Json
from apiece.budgets import ConsentMapping, read_consents
from apiece.budgets.consent_files import _read_consent
from apiece.budgets.consents import ALWAYS, ConsentRecords, Rule, Standing, find_permitting
from apiece.errors import DataError, InputError
from refusals import refused

DAY = date(2026, 5, 1)
REASON = "http://terminology.hl7.org/CodeSystem/v3-ActReason"
CODES = f"""
levels = {{ low = 1, high = 8 }}
default = "low"
provisions = "exceptions"
anything = ["urn:role|recipient"]
[level]
"urn:c|broad" = "high"
[purpose]
"{REASON}|HRESCH" = "research"
"{REASON}|TREAT" = "care"
"https://w3id.org/dpv#ScientificResearch" = "research"
[querier]
"Organization/lab" = "lab"
[decision]
"urn:p|OPTIN" = "permit"
"urn:p|OPTOUT" = "deny"
[about]
"urn:s|research" = true
"urn:s|adr" = false
"""
FHIR = ConsentMapping.from_toml(f'source = "fhir"\n{CODES}')
DPV = ConsentMapping.from_toml(f'source = "dpv"\n{CODES}')
CSV = ConsentMapping.from_toml(
    """
source = "csv"
levels = { low = 1, high = 8 }
[decision]
no = "deny"
[purpose]
science = "research"
[columns]
person = "who"
level = "level"
from = "from"
until = "until"
purpose = "for"
"""
)


def coded(*codes: str) -> list[Json]:
    return [dict(zip(("system", "code"), code.rsplit("|", 1), strict=True)) for code in codes]


def concept(*codes: str) -> Json:
    return {"coding": coded(*codes)}


RESEARCH, CARE = f"{REASON}|HRESCH", f"{REASON}|TREAT"
LAB = {"role": concept("urn:role|recipient"), "reference": {"reference": "Organization/lab"}}


def r4(provision: Json | None = None, person: str = "ann", **more: object) -> Json:
    own = {} if provision is None else {"provision": provision}
    return {
        "resourceType": "Consent", "id": "c1", "status": "active",
        "scope": concept("urn:s|research"), "category": [concept("urn:any|thing")],
        "patient": {"reference": f"Patient/{person}"}, **own, **more,
    }  # fmt: skip


def r5(decision: str, person: str = "ann", **more: object) -> Json:
    return {
        "resourceType": "Consent", "status": "active", "category": [concept("urn:s|research")],
        "subject": {"reference": f"Patient/{person}"}, "decision": decision, **more,
    }  # fmt: skip


def bundle(*resources: object, **more: object) -> Json:
    entries = [{"fullUrl": f"urn:{i}", "resource": each} for i, each in enumerate(resources)]
    return {"resourceType": "Bundle", "type": "collection", "entry": entries, **more}


def read(folder: Path, content: object, mapping: ConsentMapping = FHIR) -> ConsentRecords:
    path = folder / ("c.csv" if mapping.source == "csv" else "c.json")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_consents(path, mapping)


def cells(standing: Standing, person: str = "ann") -> dict[str, float]:
    """Return a person's ε in each "querier/purpose" that they permit."""
    if person not in standing.ids:
        return {}
    at = standing.ids.tolist().index(person)
    return {
        f"{querier}/{purpose}": float(standing.epsilon[at])
        for i, querier in enumerate(standing.queriers)
        for j, purpose in enumerate(standing.purposes)
        if standing.allowed[at, i, j]
    }


EVERYWHERE = ["lab/care", "lab/research", "lab/*", "*/care", "*/research", "*/*"]


@pytest.mark.parametrize(
    ("said", "permits", "epsilon"),
    [
        ([r4({"type": "permit"})], EVERYWHERE, 1),
        ([r4({"type": "permit", "code": [concept("urn:c|broad")], "purpose": coded(RESEARCH)})],
         ["lab/research", "*/research"], 8),
        ([r4({"type": "permit", "actor": [LAB], "purpose": coded(RESEARCH, CARE)})],
         ["lab/care", "lab/research"], 1),
        ([r4(policyRule=concept("urn:p|OPTIN"))], EVERYWHERE, 1),
        ([r4({"period": {"end": "2026-05"}}, policyRule=concept("urn:p|OPTIN"))], EVERYWHERE, 1),
        ([r4({"type": "deny", "provision": [{"type": "permit", "purpose": coded(RESEARCH)}]})],
         ["lab/research", "*/research"], 1),
        ([r4({"type": "permit", "provision": [{"type": "deny", "purpose": coded(CARE)}]})],
         ["lab/research", "lab/*", "*/research", "*/*"], 1),
        ([r4({"type": "permit"}), r4({"type": "deny", "actor": [LAB]})],
         ["*/care", "*/research", "*/*"], 1),
        ([r4({"type": "permit"}, category=[concept("urn:c|broad")])], EVERYWHERE, 8),
        ([r4({"type": "permit"}), r4({"type": "deny"}, scope=concept("urn:s|adr"))], EVERYWHERE, 1),
        ([r5("permit")], EVERYWHERE, 1),
        ([r5("permit", provision=[{"purpose": coded(CARE)}])],
         ["lab/research", "lab/*", "*/research", "*/*"], 1),
        ([r5("deny", provision=[{"purpose": coded(RESEARCH), "code": [concept("urn:c|broad")]}])],
         ["lab/research", "*/research"], 8),
        ([r5("permit", grantee=[{"reference": "Organization/lab"}])],
         ["lab/care", "lab/research", "lab/*"], 1),
        ([r5("permit", period={"start": "2026-04-30", "end": "2026-05-01"})], EVERYWHERE, 1),
        # which permit less: ended, not begun, of an unknown day, denied, inactive
        ([r4({"type": "permit", "period": {"end": "2026-04-30"}})], [], 0),
        ([r4({"type": "permit", "period": {"end": "2026-05-01T12:00:00Z"}})], [], 0),
        ([r4({"type": "permit", "period": {"start": "2026"}})], [], 0),
        ([r4({"type": "permit"}), r4({"type": "deny", "period": {"start": "2026"}})], [], 0),
        ([r4({"type": "permit"}), r4({"type": "deny", "period": {"end": "2026-04-30"}})],
         EVERYWHERE, 1),
        ([r4({"type": "permit"}, status="inactive")], [], 0),
        ([r5("permit", period={"end": "2025-01-01"})], [], 0),
        # two permits for different things: the strictest level holds for all
        ([r4({"type": "permit", "purpose": coded(RESEARCH), "code": [concept("urn:c|broad")]}),
          r4({"type": "permit", "purpose": coded(CARE)})],
         ["lab/care", "lab/research", "*/care", "*/research"], 1),
    ],
)  # fmt: skip
def test_a_bundle_permits_what_it_says(
    tmp_path: Path, said: list[Json], permits: list[str], epsilon: float
) -> None:
    standing = read(tmp_path, bundle(*said)).on(DAY)
    assert sorted(cells(standing)) == sorted(permits)
    assert set(cells(standing).values()) == ({epsilon} if permits else set())


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (r4({"type": "permit", "purpose": coded("urn:x|y")}), "a code that the mapping lacks"),
        (r4({"type": "permit", "purpose": coded(RESEARCH, "urn:x|y")}), "mapping lacks"),
        (r4({"type": "deny", "purpose": coded("urn:x|y")}), "a code that the mapping lacks"),
        (r4({"type": "permit", "code": [concept("urn:c|broad", CARE)]}), "contradict each other"),
        (r4({"type": "permit", "code": [{"text": "all"}]}), "a code that the mapping lacks"),
        (r4({"type": "permit", "actor": [{"reference": {"display": "x"}}]}), "mapping lacks"),
        (r4({"type": "permit", "provision": [{"type": "permit"}]}), "excepts nothing"),
        (r4({"type": "permit", "provision": [{"purpose": coded(CARE)}]}), "excepts nothing"),
        (r4({"type": "deny", "provision": [{"type": "permit", "provision": [{"type": "deny"}]}]}),
         "an exception of an exception"),
        (r4({"type": "permit"}, policyRule=concept("urn:p|OPTOUT")), "contradicts its policy"),
        (r4({"type": "permit"}, policyRule=concept("urn:p|law")), "mapping lacks"),
        (r4({"purpose": coded(RESEARCH)}), "no decision"),
        (r4(), "no decision"),
        (r4({"type": "maybe"}), "no known type"),
        (r4({"type": "permit", "modifierExtension": [{"url": "u"}]}), "a modifierExtension"),
        (r4({"type": "permit"}, implicitRules="urn:r"), "a modifierExtension or implicitRules"),
        (r4({"type": "permit", "data": []}), "a limit to some of the data"),
        (r4({"type": "permit", "dataPeriod": {"end": "2020"}}), "a limit to some of the data"),
        (r4({"type": "permit", "why": 1}), "an element that a provision does not have"),
        (r4({"type": "permit"}, nota=1), "an element that Consent does not have"),
        (r4({"type": "permit"}, status="unknown"), "a status that is none"),
        (r4({"type": "permit"}, status=["active"]), "a status that is none"),
        (r4({"type": "permit"}, scope=concept("urn:s|other")), "a scope or category"),
        (r4({"type": "permit"}, verification=[{"verified": False}]), "not verified"),
        (r4({"type": "permit", "period": {"start": "2026-13-01"}}), "a date that is none"),
        (r4({"type": "permit", "period": {"start": "2026-05-01T10:00:00"}}), "a date that is none"),
        (r4({"type": "permit", "period": {"start": 3}}), "a date that is none"),
        (r4({"type": "permit", "period": {"start": "2027", "end": "2026"}}), "ends before"),
        (r4({"type": "permit", "provision": 3}), "an element of another form"),
        (r5("perhaps"), "no decision"),
        (r5("permit", person="x/y"), "no patient"),
        (r4({"type": "permit"}, subject={"reference": "Patient/bob"}), "no patient"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_counted_and_named(tmp_path: Path, odd: Json, kind: str) -> None:
    consents = read(tmp_path, bundle(odd, r4({"type": "permit"}, person="bob")))
    with pytest.raises(DataError, match=kind) as refused:
        consents.on(DAY)
    said = str(refused.value)
    assert "1 consents are not understood: 1 with" in said
    assert "\n" not in said
    assert not {"ann", "bob"} & set(said.replace("/", " ").split())
    if "no patient" in kind:  # whose it is nobody knows: a denial may be anybody's
        with pytest.raises(DataError, match="say whose they are"):
            consents.on(DAY, leave_out=True)
    else:
        assert consents.on(DAY, leave_out=True).ids.tolist() == ["bob"]


def test_several_levels_at_once_are_refused_and_provisions_of_r5_need_a_reading(
    tmp_path: Path,
) -> None:
    broad = r4({"type": "permit", "code": [concept("urn:c|broad")]})
    with pytest.raises(DataError, match="1 with several levels in force at once"):
        read(tmp_path, bundle(broad, r4({"type": "permit"}))).on(DAY)
    limited = r5("permit", provision=[{"purpose": coded(RESEARCH)}])
    for reading, permits in (("limits", ["*/research", "lab/research"]), (None, None)):
        line = f'provisions = "{reading}"' if reading else ""
        text = CODES.replace('provisions = "exceptions"', line)
        found = read(
            tmp_path, bundle(limited), ConsentMapping.from_toml(f'source = "fhir"\n{text}')
        )
        if permits is None:
            with pytest.raises(DataError, match="of which the mapping does not say what they are"):
                found.on(DAY)
        else:
            assert sorted(cells(found.on(DAY))) == permits


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"resourceType": "Consent"}, "no FHIR Bundle"),
        (bundle(type="history"), "no FHIR Bundle of the type collection or searchset"),
        (bundle(r4({"type": "permit"}), link=[{"relation": "next", "url": "u"}]), "one page"),
        (bundle(), "no consent is in it"),
        (bundle({"resourceType": "Patient"}), "no consent is in it"),
        ({**bundle(), "entry": [{"fullUrl": "u"}]}, "an entry without a resource"),
        ([1], "no FHIR Bundle"),
        ("{", "not JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(tmp_path, content)


def test_of_a_table_the_row_in_force_counts(tmp_path: Path) -> None:
    table = """who,level,from,until,for
ann,low,,2026-03-31,
ann,high,2026-04-01,2026-12-31,
bob,low,2026-01-01,,science
cyd,high,,,
cyd,no,2026-06-01,,
"""
    found = read(tmp_path, table, CSV)
    for day, expected in (
        (date(2026, 3, 31), {"ann": 1.0, "bob": 1.0, "cyd": 8.0}),
        (date(2026, 4, 1), {"ann": 8.0, "bob": 1.0, "cyd": 8.0}),
        (date(2026, 6, 1), {"ann": 8.0, "bob": 1.0}),
        (date(2027, 1, 1), {"bob": 1.0}),
    ):
        standing = found.on(day)
        assert dict(zip(standing.ids, standing.epsilon, strict=True)) == expected
    standing = found.on(date(2026, 4, 1))
    assert [date.fromordinal(each).isoformat() for each in standing.until] == [
        "2026-12-31", "9999-12-31", "2026-05-31"]  # fmt: skip
    assert standing.permits({"purpose": "research"}).tolist() == [True, True, True]
    assert standing.permits({"purpose": "care"}).tolist() == [True, False, True]
    assert standing.permits({}).tolist() == [True, False, True]
    for row, kind in (
        ("dan,,,,", "mapping lacks"), ("dan,LOW,,,", "mapping lacks"), (",low,,,", "no person"),
        ("dan,low,,,war", "mapping lacks"), ("dan,low,May,,", "date"),
        ("ann,low,2026-04-01,,", "several levels"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=f"1 with .*{kind}"):
            read(tmp_path, table + row + "\n", CSV).on(date(2026, 4, 1))


def dpv(*records: Json, context: object = None) -> Json:
    spaces = {"dpv": "https://w3id.org/dpv#", "ex": "urn:ex:", "dct": "http://purl.org/dc/terms/",
              "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#"}  # fmt: skip
    return {"@context": spaces if context is None else context, "@graph": list(records)}


def record(status: object = "dpv:ConsentGiven", **more: object) -> Json:
    named = {f"dpv:{key}": value for key, value in more.items()}
    return {
        "@id": "ex:1", "@type": "dpv:ConsentRecord", "dct:title": "a consent",
        "dpv:hasDataSubject": {"@id": "ex:ann"}, "dpv:hasConsentStatus": status, **named,
    }  # fmt: skip


UNTIL = {"@type": "dpv:UntilTimeDuration", "rdf:value": "2026-05-31"}


def test_records_of_dpv_are_read_or_refused(tmp_path: Path) -> None:
    research = {"@id": "dpv:ScientificResearch"}

    def found(*records: Json, **how: object) -> list[str]:
        consents = read(tmp_path, dpv(*records, **how), DPV)
        return sorted(cells(consents.on(DAY), "urn:ex:ann"))

    assert found(record({"@id": "dpv:ConsentGiven"})) == sorted(EVERYWHERE)
    assert found(record(hasPurpose=[research])) == ["*/research", "lab/research"]
    assert found(record(hasPurpose=research, hasDuration=UNTIL)) == ["*/research", "lab/research"]
    assert found(record(hasExpiry="2026-04-30")) == []
    assert found(record(hasExpiry={"@type": "xsd:date", "@value": "2026-05-01"})) == sorted(
        EVERYWHERE
    )
    assert found(record(), record("dpv:ConsentWithdrawn", hasPurpose=research)) == [
        "*/*", "*/care", "lab/*", "lab/care"]  # fmt: skip
    assert found(record("dpv:ConsentExpired")) == []
    assert found(record(isIndicatedAtTime="2026-05-01T08:00:00Z")) == []
    assert found(record(["dpv:ConsentGiven", "dpv:ConsentWithdrawn"])) == []
    for odd, kind in (
        (record("dpv:Consenting"), "a status that is none"),
        (record(["dpv:ConsentGiven", "dpv:ConsentExpired"]), "contradict each other"),
        (record(hasPurpose={"@id": "dpv:Marketing"}), "mapping lacks"),
        (record(hasProcess={"@id": "ex:p"}), "a term that is not understood"),
        (
            record(hasDuration={"@type": "dpv:TemporalDuration", "rdf:value": "P12M"}),
            "until a time",
        ),
        (record({"@type": "dpv:ConsentGiven", "dpv:hasDuration": UNTIL}), "not understood"),
        (record(hasExpiry=["2026-06-01", "2027-01-01"]), "several dates"),
        ({**record(), "ex:validUntil": "2020"}, "a term that is not understood"),
    ):
        with pytest.raises(DataError, match=f"1 with .*{kind}"):
            found(odd)
    with pytest.raises(DataError, match="give a table from prefixes to IRIs, and no address"):
        found(record(), context="https://w3id.org/dpv")
    with pytest.raises(DataError, match="no consent is in it"):
        found(record(), context={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source = 'xml'", "give one of fhir, csv, dpv"),
        ("source = 'fhir'\nlevels = {low = 1}\nwhatever = 1", "'whatever' is unknown"),
        ("source = 'fhir'\nlevels = {low = 1}\n[level]\nx = 'high'", "'x' = 'high'"),
        ("source = 'fhir'\nlevels = {low = 1}\n[purpose]\nx = '*'", "see the guide"),
        ("source = 'fhir'\nlevels = {low = 1}\ndefault = 'high'", "give one of low"),
        ("source = 'fhir'\nlevels = {low = 1}\n[about]\nx = 1", "true or false"),
        ("source = 'fhir'\nlevels = {low = 1}\n[level]\nx = [1]", "see the guide"),
        ("source = 'fhir'\nlevels = {low = 1}\ndefault = [1]", "give one of low"),
        ("source = 'csv'\nlevels = {low = 1}\ncolumns = {person = 1, level = 'x'}", "as a text"),
        ("source = 'csv'\nlevels = {low = 1}", r"\[columns\] is of a CSV"),
        ("source = 'csv'\nlevels = {low = 1}\ncolumns = {person = 'p'}", "person and level"),
        ("source = 'fhir'", "levels"),
        ("source = [", "not TOML"),
    ],
)
def test_a_mapping_says_what_is_wrong_with_it(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ConsentMapping.from_toml(text)


# --- laws, of any rules

AT = DAY.toordinal()
days = st.sampled_from([ALWAYS[0], AT - 9, AT - 1, AT, AT + 1, AT + 9, ALWAYS[1]])
names = st.sampled_from([None, frozenset({"research"}), frozenset({"care", "research"})])


@st.composite
def rules(draw: st.DrawFn, permit: bool | None = None, depth: int = 1) -> Rule:
    permits = draw(st.booleans()) if permit is None else permit
    a, b, c, d = sorted(draw(st.tuples(days, days, days, days)))
    inner = draw(st.lists(rules(permit=not permits, depth=0), max_size=2)) if depth else []
    level = draw(st.sampled_from([1.0, 8.0])) if permits else 0.0
    who = draw(st.sampled_from([None, frozenset({"lab"})]))
    return Rule(permits, level, who, draw(names), (b, c), (a, d), tuple(inner))


def of(own: Sequence[Rule], day: int = AT) -> tuple[float, list[bool]]:
    consents = ConsentRecords(FHIR)
    consents.rules["ann"] = list(own)
    standing = consents.on(date.fromordinal(day), leave_out=True)
    if not len(standing):
        return 0.0, [False] * 6
    return float(standing.epsilon[0]), standing.allowed[0].reshape(-1).tolist()


def no_more(one: tuple[float, list[bool]], other: tuple[float, list[bool]]) -> bool:
    return one[0] <= other[0] and all(a <= b for a, b in zip(one[1], other[1], strict=True))


@settings(max_examples=40)
@given(st.lists(rules(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_consents_does_not_matter(own: list[Rule], random: object) -> None:
    shuffled = list(own)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert of(own) == of(shuffled)


@settings(max_examples=40)
@given(st.lists(rules(), max_size=3), rules(permit=False, depth=0))
def test_a_denial_never_raises_anything(own: list[Rule], denial: Rule) -> None:
    assert no_more(of([*own, denial]), of(own))


@settings(max_examples=40)
@given(st.lists(rules(), min_size=1, max_size=3), st.integers(1, 40))
def test_past_the_end_of_a_permit_there_is_nothing_more(own: list[Rule], later: int) -> None:
    ended = [Rule(r.permit, r.level, r.queriers, r.purposes, (r.sure[0], min(r.sure[1], AT)),
                  (r.maybe[0], min(r.maybe[1], AT)), r.exceptions) for r in own]  # fmt: skip
    assert of(ended, AT + later) == (0.0, [False] * 6)


@settings(max_examples=40)
@given(st.lists(rules(), min_size=1, max_size=3), st.integers(0, 30))
def test_until_the_last_day_that_is_told_nothing_changes(own: list[Rule], later: int) -> None:
    consents = ConsentRecords(FHIR)
    consents.rules["ann"] = own
    standing = consents.on(DAY, leave_out=True)
    if len(standing) and AT + later <= standing.until[0]:
        assert not no_more(of(own), (0.0, [False] * 6))
        assert of(own, AT + later) == of(own)


# --- a harness that looks for a budget beyond a permit in force

CODE = st.sampled_from([RESEARCH, CARE, "urn:c|broad", "urn:x|y"])
PERIOD = st.fixed_dictionaries(
    {},
    optional={
        "start": st.sampled_from(
            ["2025", "2026", "2026-05-01", "2026-05-02", "2026-05-01T09:00:00Z"]
        ),
        "end": st.sampled_from(["2026", "2026-04-30", "2026-05-01", "2026-05-01T09:00:00+02:00"]),
    },
)


@st.composite
def provisions(draw: st.DrawFn, depth: int = 2) -> Json:
    node = draw(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["permit", "deny", None, "x"])},
            optional={
                "period": PERIOD,
                "purpose": st.lists(CODE.map(lambda c: coded(c)[0]), max_size=2),
                "code": st.lists(CODE.map(concept), max_size=2),
                "actor": st.just([LAB]),
                "modifierExtension": st.just([{"url": "u"}]),
            },
        )
    )
    if depth and draw(st.booleans()):
        node["provision"] = draw(st.lists(provisions(depth=depth - 1), max_size=2))
    return {key: value for key, value in node.items() if value is not None}


@st.composite
def resources(draw: st.DrawFn) -> Json:
    status = draw(st.sampled_from(["active"] * 5 + ["inactive", "x"]))
    person = draw(st.sampled_from(["ann", "bob"]))
    if draw(st.booleans()):
        return r4(draw(provisions()), person, status=status)
    several = draw(st.lists(provisions(depth=1), max_size=2))
    untyped = [{k: v for k, v in each.items() if k != "type"} for each in several]
    more = {"provision": untyped} if untyped else {}
    return r5(draw(st.sampled_from(["permit", "deny"])), person, status=status,
              period=draw(PERIOD), **more)  # fmt: skip


def most(resource: Json, querier: str, purpose: str) -> tuple[float, bool]:
    """Return the level that a resource may give in a cell at most, and whether it plainly denies.

    A plain reading in other words, of the JSON itself: of each permit that could hold on the day.
    """
    start, end = resource.get("period", {}).get("start"), resource.get("period", {}).get("end")
    if resource["status"] != "active" or not holds(start, end):
        return 0.0, False
    if "subject" in resource:
        permit = resource["decision"] == "permit"
        own = resource.get("provision", [])
        matching = [fits(each, querier, purpose) for each in own]
        if permit:
            return (0.0 if any(matching) else 1.0), any(matching)
        levels = [level(each) for each, fit in zip(own, matching, strict=True) if fit]
        return max(levels, default=0.0), not levels
    root = resource.get("provision", {})
    if not fits(root, querier, purpose):
        return 0.0, False
    inner = [e for e in root.get("provision", []) if fits(e, querier, purpose)]
    denied = any(each.get("type") == "deny" for each in inner)
    if root.get("type") == "permit":
        return (0.0 if denied else level(root)), denied
    levels = [level(each, level(root)) for each in inner if each.get("type") == "permit"]
    return max(levels, default=0.0), root.get("type") == "deny" and not levels


def holds(start: str | None, end: str | None) -> bool:
    day = DAY.isoformat()
    return (start is None or start[:10] <= day) and (end is None or end[: len(day)] + "~" >= day)


def fits(node: Json, querier: str, purpose: str) -> bool:
    period = node.get("period", {})
    said = [each for each in node.get("purpose", []) if each["code"] in ("HRESCH", "TREAT")]
    said += [
        e
        for each in node.get("code", [])
        for e in each["coding"]
        if e["code"] in ("HRESCH", "TREAT")
    ]
    named = {"HRESCH": "research", "TREAT": "care"}
    return (
        holds(period.get("start"), period.get("end"))
        and ("actor" not in node or querier == "lab")
        and (not said or purpose in {named[each["code"]] for each in said})
    )


def level(node: Json, default: float = 1.0) -> float:
    return (
        8.0 if '"broad"' in json.dumps({k: node.get(k) for k in ("purpose", "code")}) else default
    )


def beyond(found: list[Json], folder: Path) -> list[str]:
    """Return each person and cell with more than what their permits in force give."""
    standing = read(folder, bundle(*found)).on(DAY, leave_out=True)
    result = []
    for person in standing.ids.tolist():
        own = [r for r in found if person in json.dumps([r.get("patient"), r.get("subject")])]
        for name, epsilon in cells(standing, person).items():
            said = [most(each, *name.split("/")) for each in own]
            if epsilon > max(level for level, _ in said) or any(denies for _, denies in said):
                result.append(f"{person} {name}: {epsilon}")
    return result


@settings(max_examples=60, deadline=None)
@given(st.lists(resources(), min_size=1, max_size=4))
@example([r4({"type": "permit"}), r4({"type": "deny"})])
def test_no_bundle_gives_more_than_a_permit_in_force(
    tmp_path_factory: pytest.TempPathFactory, found: list[Json]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    assert beyond(found, folder) == []


PLANTED: list[tuple[str, Callable[[pytest.MonkeyPatch], None]]] = [
    ("ends are not looked at", lambda m: m.setattr(
        "apiece.budgets.consents._contains", lambda days, day: days[0] <= day)),
    ("beginnings are not looked at", lambda m: m.setattr(
        "apiece.budgets.consents._contains", lambda days, day: day <= days[1])),
    ("the largest level wins", lambda m: m.setattr(
        "apiece.budgets.consent_files._find_level", lambda lists, default: 8.0)),
    ("any status counts", lambda m: m.setattr(
        "apiece.budgets.consent_files._read_consent",
        lambda said, mapping: _read_consent({**said, "status": "active"}, mapping))),
    ("names are not looked at", lambda m: m.setattr(
        "apiece.budgets.consent_files._intersect_names", lambda lists, kind, permit: None)),
    ("a denial is a permit", lambda m: m.setattr(
        "apiece.budgets.consent_files._read_type", lambda node: node.get("type") is not None)),
]  # fmt: skip

WITNESSES = [
    [r4({"type": "permit", "period": {"end": "2026-04-30"}})],
    [r4({"type": "permit", "period": {"start": "2026-05-02"}})],
    [r4({"type": "permit"})],
    [r4({"type": "permit"}, status="inactive")],
    [r4({"type": "permit", "purpose": coded(CARE)})],
    [r4({"type": "deny"})],
]


@pytest.mark.parametrize("plant", [plant for _, plant in PLANTED], ids=[n for n, _ in PLANTED])
def test_the_harness_sees_what_is_planted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    assert all(beyond(each, tmp_path) == [] for each in WITNESSES)
    plant(monkeypatch)
    assert any(beyond(each, tmp_path) for each in WITNESSES)


def test_what_a_scope_leaves_open_has_to_be_permitted_in_all() -> None:
    allowed = np.array([[[True, True], [True, False]], [[True, True], [True, True]]])
    for scope, expected in (
        ({}, [False, True]),
        ({"querier": "lab"}, [True, True]),
        ({"querier": "who"}, [False, True]),
        ({"querier": "who", "purpose": "care"}, [True, True]),
        ({"purpose": "war"}, [False, True]),
    ):
        assert find_permitting(allowed, ("lab", "*"), ("care", "*"), scope).tolist() == expected


def test_a_day_is_today_where_none_is_given(tmp_path: Path) -> None:
    found = read(tmp_path, bundle(r4({"type": "permit"})))
    assert abs(found.on().day - date.today()) <= timedelta(days=1)


# --- periods: of a consent, of its provision, of both

# A period, and whether DAY, 1 May 2026, is in it; None where some of the day is, or may be.
PERIODS: dict[str, tuple[Json, bool | None]] = {
    "ended the day before": ({"end": "2026-04-30"}, False),
    "ends today": ({"end": "2026-05-01"}, True),
    "begins tomorrow": ({"start": "2026-05-02"}, False),
    "begins today": ({"start": "2026-05-01"}, True),
    "ended last month": ({"end": "2026-04"}, False),
    "ends with this month": ({"end": "2026-05"}, True),
    "begins some day of this month": ({"start": "2026-05"}, None),
    "began last month": ({"start": "2026-04"}, True),
    "ended last year": ({"end": "2025"}, False),
    "ends with this year": ({"end": "2026"}, True),
    "begins some day of this year": ({"start": "2026"}, None),
    "began last year": ({"start": "2025"}, True),
    "ended before it": ({"start": "2026-03-01", "end": "2026-04-01"}, False),
    "begins after it": ({"start": "2026-06", "end": "2026-07"}, False),
    "around it": ({"start": "2026-04-01", "end": "2026-06-01"}, True),
    "ends within the day": ({"end": "2026-05-01T23:59:59Z"}, None),
    "ends with the day": ({"end": "2026-05-02T00:00:00Z"}, True),
    "ends within the day, in the east": ({"end": "2026-05-02T01:00:00+02:00"}, None),
    "ends with the day, in the east": ({"end": "2026-05-02T02:00:00+02:00"}, True),
    "ends with the day, in the west": ({"end": "2026-05-01T22:00:00-02:00"}, True),
    "begins with the day": ({"start": "2026-05-01T00:00:00Z"}, True),
    "begins within the day": ({"start": "2026-05-01T00:00:01Z"}, None),
    "begins within the day, by a part of a second": ({"start": "2026-05-01T00:00:00.5Z"}, None),
    "begins with the day, in the east": ({"start": "2026-05-01T02:00:00+02:00"}, True),
    "begins within the day, in the west": ({"start": "2026-05-01T00:00:00-02:00"}, None),
    "begins with the day, in the west": ({"start": "2026-04-30T23:00:00-01:00"}, True),
}
LIMITS = ConsentMapping.from_toml(
    'source = "fhir"\n' + CODES.replace('provisions = "exceptions"', 'provisions = "limits"')
)
RESEARCH_ONLY: Json = {"purpose": coded(RESEARCH)}
# Permits with periods of their own and of their provision, and what reads them.
PERMITS: dict[str, tuple[Callable[[Json, Json], Json], ConsentMapping]] = {
    "R4": (lambda own, inner: r4({"type": "permit", **inner}, **own), FHIR),
    "R4, by its policy": (
        lambda own, inner: r4(inner, policyRule=concept("urn:p|OPTIN"), **own), FHIR),
    "R4, an exception": (
        lambda own, inner: r4({"type": "deny", "provision": [{"type": "permit", **inner}]}, **own),
        FHIR),
    "R4, an exception of what has the period": (
        lambda own, inner: r4(
            {"type": "deny", "provision": [{"type": "permit", **RESEARCH_ONLY}], **inner}, **own),
        FHIR),
    "R5, an exception": (lambda own, inner: r5("deny", provision=[inner], **own), FHIR),
    "R5, a limit": (lambda own, inner: r5("permit", provision=[inner], **own), LIMITS),
}  # fmt: skip


AROUND: Json = {"period": {"start": "2025-01-01", "end": "2026-12-31"}}


@pytest.mark.parametrize("whose", ["the consent's", "the provision's", "both", "another around"])
@pytest.mark.parametrize("form", PERMITS)
def test_nobody_is_enrolled_outside_the_period_of_their_consent(
    form: str, whose: str, tmp_path: Path
) -> None:
    make, mapping = PERMITS[form]
    for name, (period, has_day) in PERIODS.items():
        of_consent = {} if whose == "the provision's" else {"period": period}
        of_provision = {} if whose == "the consent's" else {"period": period}
        if whose == "another around":
            of_provision = AROUND
        consents = read(
            tmp_path, bundle(make(of_consent, of_provision), r4({"type": "permit"}, "bob")), mapping
        )
        standing = consents.on(DAY)
        assert standing.ids.tolist() == (["ann", "bob"] if has_day else ["bob"]), name
        if has_day and int(standing.until[0]) < ALWAYS[1]:
            last = date.fromordinal(int(standing.until[0]))
            assert consents.on(last).ids.tolist() == ["ann", "bob"], name
            assert consents.on(last + timedelta(days=1)).ids.tolist() == ["bob"], name


# Denials of all, with a period: of the consent's own, and of a provision; and what reads them.
DENIALS: dict[str, tuple[Callable[[Json], list[Json]], ConsentMapping]] = {
    "R4": (lambda period: [r4({"type": "permit"}), r4({"type": "deny"}, period=period)], FHIR),
    "R4, of its provision": (
        lambda period: [r4({"type": "permit"}), r4({"type": "deny", "period": period})], FHIR),
    "R4, an exception": (
        lambda period: [r4({"type": "permit", "provision": [{"type": "deny", "period": period}]})],
        FHIR),
    "R5": (lambda period: [r5("permit"), r5("deny", period=period)], FHIR),
    "R5, an exception": (lambda period: [r5("permit", provision=[{"period": period}])], FHIR),
    "R5, of some, which is no less than all": (
        lambda period: [r5("permit"), r5("deny", period=period, provision=[RESEARCH_ONLY])],
        LIMITS),
}  # fmt: skip


@pytest.mark.parametrize("form", DENIALS)
def test_a_denial_holds_on_each_day_that_may_be_in_its_period(form: str, tmp_path: Path) -> None:
    make, mapping = DENIALS[form]
    for name, (period, has_day) in PERIODS.items():
        standing = read(tmp_path, bundle(*make(period)), mapping).on(DAY)
        assert standing.ids.tolist() == (["ann"] if has_day is False else []), name


@pytest.mark.parametrize("form", PERMITS)
def test_periods_of_consent_and_provision_that_never_meet_permit_nothing(
    form: str, tmp_path: Path
) -> None:
    make, mapping = PERMITS[form]
    ended: Json = {"period": {"end": "2026-04-30"}}
    to_come: Json = {"period": {"start": "2026-05-02"}}
    for of_consent, of_provision in ((ended, to_come), (to_come, ended)):
        consents = read(tmp_path, bundle(make(of_consent, of_provision)), mapping)
        days = [DAY + timedelta(days=shift) for shift in (-400, -1, 0, 1, 400)]
        assert [len(consents.on(day)) for day in days] == [0] * 5


def test_a_period_that_cannot_be_read_is_refused_wherever_it_is(tmp_path: Path) -> None:
    for period in ({"end": "2026-02-30"}, {"start": "2026-5-1"}, {"end": "2026-05-01T24:01:00Z"},
                   {"start": "1 May 2026"}, {"end": 20260501}, {"start": "2026", "end": "2025"},
                   ["2026"]):  # fmt: skip
        for make, mapping in PERMITS.values():
            for periods in (({"period": period}, {}), ({}, {"period": period})):
                consents = read(tmp_path, bundle(make(*periods)), mapping)
                with pytest.raises(DataError, match="1 consents are not understood"):
                    consents.on(DAY)


# --- a bundle is the whole


def page(*consents: Json, **more: object) -> Json:
    """A page of a search, as a server gives it."""
    entries = [{"resource": each, "search": {"mode": "match"}} for each in consents]
    return {"resourceType": "Bundle", "type": "searchset", "entry": entries, **more}


def outcome(severity: str | None, code: str, details: str | None = None) -> Json:
    issue: Json = {"severity": severity, "code": code}
    if details is not None:
        issue["details"] = {"coding": [{"code": details}]}
    resource = {"resourceType": "OperationOutcome", "issue": [issue]}
    return {"resource": resource, "search": {"mode": "outcome"}}


def link(relation: str, url: str = "u") -> Json:
    return {"relation": relation, "url": url}


OPT_IN = r4({"type": "permit"})
PARTS = {
    "a total of 2, one entry, a previous link": page(OPT_IN, total=2, link=[link("previous")]),
    "a total of 2, one entry": page(OPT_IN, total=2),
    "a total of 1, no entry": page(total=1),
    "a total, and entries that it does not count": page(
        OPT_IN, total=2) | {"entry": [*page(OPT_IN)["entry"],
                                      {"resource": OPT_IN, "search": {"mode": "include"}}]},
    "a total that is none": page(OPT_IN, total="1"),
    "a total below nothing": page(OPT_IN, total=-1),
    "a previous page": page(OPT_IN, link=[link("self"), link("previous")]),
    "a previous page, as IANA has it": page(OPT_IN, link=[link("self"), link("prev")]),
    "a next page": page(OPT_IN, link=[link("self"), link(" Next ")]),
    "one link, no list": page(OPT_IN, link=link("next")),
    "a last page that is not the first": page(OPT_IN, link=[link("first", "a"), link("last", "b")]),
    "a link of no form": page(OPT_IN, link=["next"]),
    "an error": page(OPT_IN) | {"entry": [*page(OPT_IN)["entry"], outcome("error", "processing")]},
    "a warning": page(OPT_IN) | {"entry": [*page(OPT_IN)["entry"], outcome("warning", "x")]},
    "incomplete, as information": page(OPT_IN) | {
        "entry": [*page(OPT_IN)["entry"], outcome("information", "incomplete")]},
    "suppressed, in the details": page(OPT_IN) | {
        "entry": [*page(OPT_IN)["entry"], outcome("information", "informational", "suppressed")]},
    "an outcome that says nothing": page(OPT_IN) | {
        "entry": [*page(OPT_IN)["entry"], {"resource": {"resourceType": "OperationOutcome"}}]},
    "a bundle within": page(page(OPT_IN)),
}  # fmt: skip


@pytest.mark.parametrize("what", PARTS)
def test_what_may_not_be_the_whole_is_refused(what: str, tmp_path: Path) -> None:
    """A person who denied on another page would be enrolled."""
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps(PARTS[what]))
    with pytest.raises(DataError, match=r"bundle\.json: ") as error:
        read_consents(path, FHIR)
    assert "\n" not in str(error.value)


WHOLE = {
    "no count": page(OPT_IN),
    "as many as its total": page(OPT_IN, total=1, link=[link("self")]),
    "first and last are one": page(OPT_IN, total=1, link=[link("first"), link("last")]),
    "what is included beside": page(OPT_IN, total=1) | {
        "entry": [*page(OPT_IN)["entry"],
                  {"resource": {"resourceType": "Patient"}, "search": {"mode": "include"}}]},
    "a piece of information": page(OPT_IN, total=1) | {
        "entry": [*page(OPT_IN)["entry"], outcome("information", "informational")]},
    "pages put together": bundle(OPT_IN, OPT_IN, total=2),
}  # fmt: skip


@pytest.mark.parametrize("what", WHOLE)
def test_the_whole_is_read(what: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps(WHOLE[what]))
    assert len(read_consents(path, FHIR).on(DAY)) == 1


def test_codes_that_the_mapping_lacks_are_named_to_who_keeps_the_consents(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    rows = ["ann,odd,", "bob,odd,", "cy,high,x\u202ey", "dan,high,science"]
    path.write_text("who,level,for,from,until\n" + "".join(f"{row},,\n" for row in rows))
    consents = read_consents(path, CSV)
    (line,) = consents.name_unknown_codes()
    assert line.endswith("codes that the mapping lacks: 'odd' (2), 'x\\u202ey' (1)")
    with refused(DataError, 3, "understood") as error:
        consents.on(DAY)
    assert "odd" not in str(error.value)  # nor is it in what goes further
    assert consents.on(DAY, leave_out=True).ids.tolist() == ["dan"]
    path.write_text("who,level,for,from,until\n" + "".join(f"p{k},c{k},,,\n" for k in range(30)))
    (line,) = read_consents(path, CSV).name_unknown_codes()
    assert line.endswith("and 10 more")
