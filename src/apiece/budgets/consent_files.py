"""Files of consents: FHIR bundles, tables with dates, DPV records; each to rules, or refused."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from apiece._identifiers import find_flaw
from apiece._json import loads
from apiece._text import plain
from apiece._types import Json
from apiece.budgets.consents import (
    ALWAYS,
    ConsentMapping,
    ConsentRecords,
    Days,
    Meaning,
    Names,
    OddError,
    Rule,
)
from apiece.datasets import read_table
from apiece.datasets.cells import read_texts, select_column
from apiece.errors import DataError

UNKNOWN: Final = "a code that the mapping lacks"
_DATE: Final = re.compile(
    r"(\d{4})(-\d\d)?(-\d\d)?(T\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d))?", re.ASCII
)


def read_consents(path: str | Path, mapping: ConsentMapping) -> ConsentRecords:
    """Return the consents in a file.

    Args:
        path: Of a JSON file with one FHIR Bundle (R4 or R5) or with DPV records (JSON-LD), or of a
            CSV or Parquet file with a row a consent, as the mapping's `source` says.
        mapping: What their codes stand for.

    Raises:
        DataError: For a file that cannot be read or is something else, and a bundle that is one
            page of several or a history. `ConsentRecords.on` refuses what single consents say.

    Example:
        >>> import tempfile
        >>> from datetime import date
        >>> from pathlib import Path
        >>> from apiece.budgets import ConsentMapping, read_consents
        >>> mapping = ConsentMapping.from_toml('''
        ... source = "csv"
        ... levels = { low = 1, high = 8 }
        ... columns = { person = "who", level = "said", until = "until" }
        ... ''')
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "consents.csv")
        ...     _ = path.write_text("who,said,until\\nann,high,2026-06-30\\nbob,low,2026-01-01\\n")
        ...     standing = read_consents(path, mapping).on(date(2026, 5, 1))
        >>> standing.ids.tolist(), standing.epsilon.tolist()
        (['ann'], [8.0])
    """
    result = ConsentRecords(mapping, str(path))
    if mapping.source == "csv":
        for row in _rows(Path(path), mapping):
            _note(result, row, _named, _row)
        return result
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a JSON file") from None
    content = loads(text, str(path))
    try:
        if mapping.source == "fhir":
            for each in _resources(content, str(path)):
                _note(result, each, _patient, _consent)
        else:
            for each in _records(content, str(path)):
                _note(result, each, _subject, _record)
    except RecursionError:
        raise DataError(f"{path}: nested too deep for a consent; give another file") from None
    if not (result.rules or result.odd or result.aside):
        raise DataError(f"{path}: no consent is in it; give what `source` of the mapping says")
    return result


def _note(
    result: ConsentRecords,
    each: Json,
    whose: Callable[[Json], str],
    said: Callable[[Json, ConsentMapping], Rule | str],
) -> None:
    """Add whose consent it is, and what they said or why nothing; or what kind of odd one it is."""
    person = ""
    try:
        named = whose(each)
        if find_flaw(named) is not None:
            raise OddError("a person's id that could be written in another way")
        person = named
        rule = said(each, result.mapping)
    except OddError as error:
        result.odd.setdefault(person, []).append(str(error))
        result.unknown.update(error.codes)
        return
    if isinstance(rule, str):
        result.aside[rule] += 1
    else:
        result.rules.setdefault(person, []).append(rule)


# --- dates


def _days(text: object, *, end: bool) -> tuple[int, int]:
    """Return the first or last day that a moment surely and possibly bounds, the sure one first.

    A month or year as an end has all its days in it, as FHIR says; as a beginning it is unclear.
    """
    parts = _DATE.fullmatch(text) if isinstance(text, str) else None
    if parts is None or (parts[4] and not parts[3]):
        raise OddError("a date that is none")
    year, month, day = int(parts[1]), parts[2], parts[3]
    try:
        if parts[4]:
            when = datetime.fromisoformat(str(text)).astimezone(UTC)
            at = when.date().toordinal()
            whole = not end and (when.hour, when.minute, when.second, when.microsecond) == (0,) * 4
            return (at if whole else at + (-1 if end else 1)), at
        first = date(year, int((month or "-01")[1:]), int((day or "-01")[1:]))
    except (ValueError, OverflowError):
        raise OddError("a date that is none") from None
    last = first
    if month is None:
        last = first.replace(month=12, day=31)
    elif day is None:
        last = first.replace(day=calendar.monthrange(year, first.month)[1])
    return last.toordinal(), (last if end else first).toordinal()


def _period(start: object, end: object) -> tuple[Days, Days]:
    """Return the days on which it surely holds, and on which it may."""
    first = (ALWAYS[0],) * 2 if start is None else _days(start, end=False)
    last = (ALWAYS[1],) * 2 if end is None else _days(end, end=True)
    if first[1] > last[1]:
        raise OddError("a period that ends before it begins")
    return (first[0], last[0]), (first[1], last[1])


def _both(one: tuple[Days, Days], other: tuple[Days, Days]) -> tuple[Days, Days]:
    """Return the days of two periods that are in both."""
    sure, maybe = ((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True))
    return sure, maybe


# --- codes


def _meaning(codes: Sequence[str], mapping: ConsentMapping) -> Meaning:
    """Return what a concept means, by those of its codes that are declared, which agree."""
    known = {mapping.codes[code] for code in codes if code in mapping.codes}
    if not known:
        raise OddError(UNKNOWN, codes)
    if len(known) > 1:
        raise OddError("codes that contradict each other")
    return known.pop()


def _names(lists: Sequence[Sequence[Meaning]], kind: str, permit: bool) -> Names:
    """Return what lists that all hold limit a rule to: the least for a permit, else the most."""
    result: Names = None
    for own in lists:
        named = frozenset(str(name) for each in own if (name := getattr(each, kind)) is not None)
        if named and (permit or len(own) == sum(getattr(e, kind) is not None for e in own)):
            result = named if result is None else result & named
    if result is not None and not result and not permit:
        raise OddError("codes that contradict each other")
    return result


def _level(lists: Sequence[Sequence[Meaning]], default: float | None) -> float | None:
    """Return the least level that lists of codes name."""
    named = [each.level for own in lists for each in own if each.level is not None]
    return min(named, default=default)


def _rule(
    permit: bool,
    lists: Sequence[Sequence[Meaning]],
    held: tuple[Days, Days],
    level: float | None,
    exceptions: Sequence[Rule] = (),
) -> Rule:
    if permit and level is None:
        raise OddError("a permit that names no level")
    queriers, purposes = (_names(lists, kind, permit) for kind in ("querier", "purpose"))
    given = float(level or 0.0) if permit else 0.0
    return Rule(permit, given, queriers, purposes, *held, tuple(exceptions))


# --- FHIR

_INACTIVE: Final = {
    "draft", "proposed", "rejected", "inactive", "not-done", "entered-in-error"
}  # fmt: skip
_TOLD: Final = {  # what a Consent may say beside what it decides
    "resourceType", "id", "meta", "language", "text", "contained", "extension", "identifier",
    "status", "scope", "category", "patient", "subject", "dateTime", "date", "period", "performer",
    "organization", "grantor", "grantee", "manager", "controller", "sourceAttachment",
    "sourceReference", "policy", "policyRule", "policyBasis", "policyText", "regulatoryBasis",
    "verification", "decision", "provision",
}  # fmt: skip
_CODED: Final = (
    "action", "securityLabel", "purpose", "class", "documentType", "resourceType", "code"
)  # fmt: skip
_PROVISION: Final = {"id", "extension", "type", "period", "actor", "provision", *_CODED}


def _resources(content: object, what: str) -> Iterator[Json]:
    """Yield the Consent resources of a bundle."""
    bundle = content if isinstance(content, dict) else {}
    if bundle.get("resourceType") != "Bundle" or bundle.get("type") not in (
        "collection",
        "searchset",
    ):
        raise DataError(f"{what}: no FHIR Bundle of the type collection or searchset")
    _refuse_page(bundle, what)
    for resource in _entries(bundle, what):
        if resource["resourceType"] == "Consent":
            yield resource


# Links of a search to other pages of it.
_OTHER_PAGES: Final = {"next", "prev", "previous"}
# Codes of an OperationOutcome by which a server says that it did not return all there is.
_INCOMPLETE: Final = {
    "incomplete", "incomplete-results", "suppressed", "timeout", "too-costly", "throttled",
    "transient", "lock-error", "no-store", "exception",
}  # fmt: skip


def _refuse_page(bundle: Json, what: str) -> None:
    """Raise `DataError` for a bundle whose links or count say that there are more entries."""
    remedy = "give all consents in one bundle: fetch every page, and put their entries into one"
    urls: dict[str, set[str]] = {}
    for link in _list(bundle, "link"):
        if not isinstance(link, dict):
            raise DataError(f"{what}: a link of another form; give the bundle as the server did")
        relation = str(link.get("relation")).strip().lower()
        urls.setdefault(relation, set()).add(str(link.get("url")))
    if not _OTHER_PAGES.isdisjoint(urls):
        other = min(_OTHER_PAGES & urls.keys())
        raise DataError(f"{what}: one page of several (it links to the {other} one); {remedy}")
    if len(urls.get("first", set()) | urls.get("last", set())) > 1:
        raise DataError(f"{what}: one page of several (its first is not its last); {remedy}")
    if "total" not in bundle:
        return
    total = bundle["total"]
    if type(total) is not int or total < 0:
        raise DataError(f"{what}: total = {total!r}: is no count; {remedy}")
    matches = sum(map(_is_match, _list(bundle, "entry")))
    if total > matches:
        raise DataError(f"{what}: {matches} entries of a total of {total}; {remedy}")


def _is_match(entry: object) -> bool:
    """Return whether an entry is one of those that a search's total counts."""
    own = entry if isinstance(entry, dict) else {}
    search, resource = own.get("search"), own.get("resource")
    mode = search.get("mode") if isinstance(search, dict) else None
    if mode is not None:
        return bool(mode == "match")
    return not (isinstance(resource, dict) and resource.get("resourceType") == "OperationOutcome")


def _entries(bundle: Json, what: str) -> Iterator[Json]:
    """Yield the resources of a bundle; refuse one in which a server says that some are missing."""
    for entry in _list(bundle, "entry"):
        resource = entry.get("resource") if isinstance(entry, dict) else None
        if not isinstance(resource, dict) or "resourceType" not in resource:
            raise DataError(f"{what}: an entry without a resource; give all that the bundle had")
        if resource["resourceType"] == "Bundle":
            raise DataError(f"{what}: a bundle within the bundle; put its entries into the one")
        if resource["resourceType"] == "OperationOutcome":
            _refuse_incomplete(resource, what)
        yield resource


def _refuse_incomplete(outcome: Json, what: str) -> None:
    """Raise `DataError` for an outcome other than a piece of information on a whole answer."""
    issues = [each if isinstance(each, dict) else {} for each in _list(outcome, "issue")] or [{}]
    for issue in issues:
        details = issue.get("details")
        codings = _list(details, "coding") if isinstance(details, dict) else []
        codes = {str(each.get("code")) for each in (issue, *codings) if isinstance(each, dict)}
        severity = issue.get("severity")
        if severity in ("information", "success") and _INCOMPLETE.isdisjoint(codes):
            continue
        code = plain(issue.get("code"))[:60]
        raise DataError(
            f"{what}: the server says that its answer may not be whole (an OperationOutcome of "
            f"severity {plain(severity)[:20]}, code {code}); search again, and give an answer "
            "without it"
        )


def _patient(resource: Json) -> str:
    given = [resource[name] for name in ("patient", "subject") if name in resource]
    reference = _reference(given[0]) if len(given) == 1 else ""
    person = re.fullmatch(r"Patient/([A-Za-z0-9.-]{1,64})", reference)
    if person is None:
        raise OddError("no patient, written as Patient/ID")
    return person[1]


def _consent(resource: Json, mapping: ConsentMapping) -> Rule | str:
    """Return what a Consent says, or why it says nothing."""
    _refuse_modifiers(resource)
    if resource.keys() - _TOLD:
        raise OddError("an element that Consent does not have")
    if str(status := resource.get("status")) in _INACTIVE:
        return f"status {status}"
    if status != "active":
        raise OddError("a status that is none")
    about = {
        _about(each, mapping) for each in _list(resource, "scope") or _list(resource, "category")
    }
    if about == {False}:
        return "another subject"
    if about != {True}:
        raise OddError("a scope or category that the mapping lacks")
    if not all(_dict(e).get("verified", True) is True for e in _list(resource, "verification")):
        raise OddError("a consent that is not verified")
    whole = _period(*_ends(resource))
    known = [_codes(each) for each in _list(resource, "category")]
    named = [mapping.codes[code] for codes in known for code in codes if code in mapping.codes]
    default = _level([named], mapping.default)
    if "decision" in resource or "subject" in resource:  # R5
        return _of_decision(resource, whole, mapping, default)
    root = _dict(resource.get("provision", {}))
    rule = _decision(mapping, _list(resource, "policyRule"))
    typed = _typed(root)
    if typed is not None and rule is not None and typed != rule:
        raise OddError("a provision that contradicts its policy")
    permit = rule if typed is None else typed
    if permit is None:
        raise OddError("no decision")
    return _provision(root, permit, mapping, whole, default, 2)


def _of_decision(
    resource: Json, whole: tuple[Days, Days], mapping: ConsentMapping, default: float | None
) -> Rule:
    """Return what a Consent of R5 says: a decision, and provisions that have no type."""
    own = [_dict(each) for each in _list(resource, "provision")]
    decision = resource.get("decision")
    if decision not in ("permit", "deny"):
        raise OddError("no decision")
    permit = decision == "permit"
    grantees = [_meaning([_reference(each)], mapping) for each in _list(resource, "grantee")]
    who = [grantees] if grantees else []
    if own and mapping.provisions is None:
        raise OddError("provisions of R5, of which the mapping does not say what they are")
    if mapping.provisions == "limits" and own:
        if not permit:  # however limited, it denies: no less than all
            return _rule(False, who, whole, None)
        inner = [_provision(each, True, mapping, whole, default, 1) for each in own]
        return _rule(False, who, whole, None, inner)
    inner = [_provision(each, not permit, mapping, whole, default, 1) for each in own]
    return _rule(permit, who, whole, default, inner)


def _provision(
    node: Json,
    permit: bool,
    mapping: ConsentMapping,
    whole: tuple[Days, Days],
    default: float | None,
    depth: int,
) -> Rule:
    """Return the rule of a provision, and of its exceptions to so many levels below it."""
    odd = node.keys() - _PROVISION
    if odd & {"data", "dataPeriod", "expression"}:
        raise OddError("a limit to some of the data")
    if odd:
        raise OddError("an element that a provision does not have")
    lists = [
        [_meaning(_codes(each), mapping) for each in _list(node, name)]
        for name in _CODED
        if name in node
    ]
    actors = [_dict(each) for each in _list(node, "actor")]
    for actor in actors:
        if "role" in actor:
            _meaning(_codes(actor["role"]), mapping)
    if actors:
        lists.append([_meaning([_reference(each.get("reference"))], mapping) for each in actors])
    held = _both(whole, _period(*_ends(node)))
    level, exceptions = _level(lists, default), []
    for each in map(_dict, _list(node, "provision")):
        typed = _typed(each)
        if depth < 2:
            raise OddError("an exception of an exception")
        if typed is None or typed == permit:
            raise OddError("an exception that excepts nothing")
        exceptions.append(_provision(each, typed, mapping, held, level, depth - 1))
    return _rule(permit, lists, held, level, exceptions)


def _refuse_modifiers(value: object) -> None:
    """Raise `OddError` where anything changes what the rest means."""
    match value:
        case dict():
            if value.keys() & {"modifierExtension", "implicitRules"}:
                raise OddError("a modifierExtension or implicitRules")
            for each in value.values():
                _refuse_modifiers(each)
        case list():
            for each in value:
                _refuse_modifiers(each)


def _about(concept: object, mapping: ConsentMapping) -> bool:
    known = {mapping.about[code] for code in _codes(concept) if code in mapping.about}
    if len(known) != 1:
        raise OddError(
            "a scope or category that the mapping lacks", () if known else _codes(concept)
        )
    return known.pop()


def _decision(mapping: ConsentMapping, concepts: Sequence[object]) -> bool | None:
    """Return what a policy decides, None where it is declared to decide nothing."""
    for concept in concepts:
        codes = _codes(concept)
        _meaning(codes, mapping)
        known = {mapping.decisions[code] for code in codes if code in mapping.decisions}
        if len(known) > 1:
            raise OddError("codes that contradict each other")
        if known:
            return known.pop()
    return None


def _typed(node: Json) -> bool | None:
    given = node.get("type")
    if given not in (None, "permit", "deny"):
        raise OddError("a provision of no known type")
    return None if given is None else given == "permit"


def _codes(concept: object) -> list[str]:
    """Return the codes of a CodeableConcept or a Coding, as "system|code"."""
    given = _dict(concept)
    codings = _list(given, "coding") if "coding" in given else [given]
    result = []
    for each in map(_dict, codings):
        system, code = each.get("system"), each.get("code")
        if not isinstance(code, str) or not isinstance(system, str | None):
            raise OddError(UNKNOWN)
        result.append(code if system is None else f"{system}|{code}")
    if not result:
        raise OddError(UNKNOWN)
    return result


def _reference(value: object) -> str:
    return str(_dict(value).get("reference"))


def _ends(node: Json) -> tuple[object, object]:
    period = _dict(node.get("period", {}))
    return period.get("start"), period.get("end")


def _dict(value: object) -> Json:
    if not isinstance(value, dict):
        raise OddError("an element of another form")
    return value


def _list(node: Json, name: str) -> list[object]:
    """Return all values of an element, which may be one or several."""
    value = node.get(name, [])
    return list(value) if isinstance(value, list) else [value]


# --- tables


def _rows(path: Path, mapping: ConsentMapping) -> Iterator[Json]:
    """Yield the cells of each row by what the mapping says that they are."""
    table, roles = read_table(path), mapping.columns
    cells = [read_texts(select_column(table, name, role)).tolist() for role, name in roles.items()]
    return (dict(zip(roles, values, strict=True)) for values in zip(*cells, strict=True))


def _named(row: Json) -> str:
    if not row["person"]:
        raise OddError("no person")
    return str(row["person"])


def _row(row: Json, mapping: ConsentMapping) -> Rule:
    said = row["level"]
    permit = mapping.decisions.get(said, True)
    level = mapping.levels[said] if said in mapping.levels else _meaning([said], mapping).level
    lists = [[_meaning([row[kind]], mapping)] for kind in ("purpose", "querier") if row.get(kind)]
    held = _period(row.get("from") or None, row.get("until") or None)
    return _rule(permit, lists, held, mapping.default if level is None else level)


# --- DPV

_DPV: Final = ("https://w3id.org/dpv#", "http://www.w3.org/ns/dpv#")
_VALID: Final = {"ConsentGiven", "RenewedConsentGiven"}
_AGAINST: Final = {"ConsentRefused", "ConsentWithdrawn", "ConsentRevoked", "ConsentInvalidated"}
_NOTHING: Final = {"ConsentExpired", "ConsentRequested", "ConsentRequestDeferred", "ConsentUnknown"}
_LIMITS: Final = (
    "hasPurpose", "hasRecipient", "hasPersonalData", "hasProcessing", "hasLegalBasis", "hasData"
)  # fmt: skip
_BESIDE: Final = {
    "hasDataSubject", "hasConsentStatus", "hasDuration", "hasExpiry", "isIndicatedAtTime",
    "isIndicatedBy", "hasIndicationMethod", "hasDataController", "hasNotice", "hasConsentNotice",
    "hasJurisdiction", "hasIdentifier", *_LIMITS,
}  # fmt: skip
_VALUE: Final = "http://www.w3.org/1999/02/22-rdf-syntax-ns#value"
_PLAIN: Final = ("http://purl.org/dc/terms/", "http://www.w3.org/2000/01/rdf-schema#")
_UNLIMITING: Final = {"title", "description", "identifier", "created", "modified", "label"}


def _records(content: object, what: str) -> Iterator[Json]:
    """Yield the consent records of a JSON-LD document, with all names written out."""
    if not isinstance(content, dict):
        raise DataError(f"{what}: no JSON-LD object; give one with @context and @graph")
    prefixes = content.get("@context", {})
    if not isinstance(prefixes, dict) or not all(isinstance(e, str) for e in prefixes.values()):
        raise DataError(f"{what}: @context: give a table from prefixes to IRIs, and no address")
    nodes = content.get("@graph", [content])
    for node in nodes if isinstance(nodes, list) else [None]:
        if not isinstance(node, dict):
            raise DataError(f"{what}: @graph: give a list of records")
        whole = _written_out({k: v for k, v in node.items() if k != "@context"}, prefixes)
        kinds = _list(whole, "@type")
        if {f"{space}{kind}" for space in _DPV for kind in ("Consent", "ConsentRecord")} & {
            str(kind) for kind in kinds
        }:
            yield whole


def _written_out(value: object, prefixes: Json) -> Json:
    """Return a node with its keys, types and ids as IRIs."""

    def iri(name: object) -> object:
        if not isinstance(name, str):
            return name
        head, colon, rest = name.partition(":")
        return prefixes[head] + rest if colon and head in prefixes else name

    def of(each: object, key: str) -> object:
        if isinstance(each, dict):
            return {str(iri(k)): of(v, k) for k, v in each.items()}
        if isinstance(each, list):
            return [of(part, key) for part in each]
        return iri(each) if key != "@value" else each

    return _dict(of(value, ""))


def _of(record: Json, name: str) -> list[list[str]]:
    """Return of each value of a property of DPV its IRIs or its text."""
    result = []
    for value in [each for space in _DPV for each in _list(record, space + name)]:
        node = value if isinstance(value, dict) else {"@value": value}
        if node.keys() - {"@id", "@type", "@value"}:
            raise OddError("a term that is not understood")
        keys = ("@value",) if "@value" in node else ("@id", "@type")
        result.append([str(each) for key in keys for each in _list(node, key)])
    return result


def _subject(record: Json) -> str:
    people = [each for space in _DPV for each in _list(record, f"{space}hasDataSubject")]
    one = people[0] if len(people) == 1 else None
    person = one.get("@id") if isinstance(one, dict) else one
    if not isinstance(person, str) or not person:
        raise OddError("no data subject, or several")
    return person


def _record(record: Json, mapping: ConsentMapping) -> Rule | str:
    """Return what a record says, or why it says nothing."""
    for key in record.keys() - {"@id", "@type"}:
        space = next((each for each in (*_DPV, *_PLAIN) if key.startswith(each)), None)
        if space is None or key[len(space) :] not in (_BESIDE if space in _DPV else _UNLIMITING):
            raise OddError("a term that is not understood")
    every = _VALID | _AGAINST | _NOTHING
    statuses = [every & set(map(_term, each)) for each in _of(record, "hasConsentStatus")]
    if not statuses or not all(len(each) == 1 for each in statuses):
        raise OddError("a status that is none")
    status = set[str]().union(*statuses)
    if not status & (_VALID | _AGAINST):
        return f"status {min(status)}"
    permit = not status & _AGAINST
    if permit and status & _NOTHING:
        raise OddError("several statuses that contradict each other")
    lists = [[_meaning(each, mapping) for each in _of(record, name)] for name in _LIMITS]
    lists = [own for own in lists if own]
    given = [each for several in _of(record, "isIndicatedAtTime") for each in several]
    held = _period(_time(given), _time(_ends_of(record)))
    return _rule(permit, lists, held, _level(lists, mapping.default))


def _ends_of(record: Json) -> list[str]:
    """Return when a record ends, as `hasExpiry`, or as a duration until a time."""
    result = [each for several in _of(record, "hasExpiry") for each in several]
    for space in _DPV:
        for each in _list(record, f"{space}hasDuration"):
            node = _dict(each)
            if [_term(str(kind)) for kind in _list(node, "@type")] != ["UntilTimeDuration"]:
                raise OddError("a duration that is not until a time")
            if node.keys() - {"@id", "@type", _VALUE}:
                raise OddError("a term that is not understood")
            value = node.get(_VALUE)
            result.append(str(value.get("@value") if isinstance(value, dict) else value))
    return result


def _time(given: Sequence[str]) -> str | None:
    if len(given) > 1:
        raise OddError("several dates where one is meant")
    return given[0] if given else None


def _term(iri: str) -> str:
    return next((iri[len(space) :] for space in _DPV if iri.startswith(space)), iri)
