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
from apiece.datasets.cells import read_texts, select_column
from apiece.datasets.tables import read_columns
from apiece.errors import DataError

# The kind of a consent that is not understood because of its codes.
UNKNOWN: Final = "a code that the mapping lacks"
# A date of a year, month or day, or an instant with its zone: groups 2 to 4 may be missing.
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
        for row in _read_rows(Path(path), mapping):
            _add_consent(result, row, _read_person, _read_row)
        return result
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a JSON file") from None
    content = loads(text, str(path))
    # Readers descend into elements, which a hostile file may nest without end.
    try:
        if mapping.source == "fhir":
            for resource in _list_consents(content, str(path)):
                _add_consent(result, resource, _read_patient, _read_consent)
        else:
            for record in _list_records(content, str(path)):
                _add_consent(result, record, _read_subject, _read_record)
    except RecursionError:
        raise DataError(f"{path}: nested too deep for a consent; give another file") from None
    # A file without any consent is more likely the wrong file.
    if not (result.rules or result.odd or result.aside):
        raise DataError(f"{path}: no consent is in it; give what `source` of the mapping says")
    return result


def _add_consent(
    result: ConsentRecords,
    consent: Json,
    read_person: Callable[[Json], str],
    read_rule: Callable[[Json, ConsentMapping], Rule | str],
) -> None:
    """Add a consent to the records: its rule, why it says nothing, or why it is not understood."""
    # Until an id is read and found in order, a consent is nobody's, "".
    person = ""
    try:
        person_id = read_person(consent)
        # An id with blanks around it, say, would be one person in two ways.
        if find_flaw(person_id) is not None:
            raise OddError("a person's id that could be written in another way")
        person = person_id
        rule = read_rule(consent, result.mapping)
    except OddError as error:
        # Counted, never guessed; the codes are for whoever keeps the mapping.
        result.odd.setdefault(person, []).append(str(error))
        result.unknown.update(error.codes)
        return
    if isinstance(rule, str):
        result.aside[rule] += 1
    else:
        result.rules.setdefault(person, []).append(rule)


# --- dates


def _read_bound(text: object, *, end: bool) -> tuple[int, int]:
    """Return the first or last day of a period, as it surely is and as it may be.

    A month or year as an end has all its days in it, as FHIR says; as a beginning it is unclear.
    """
    parts = _DATE.fullmatch(text) if isinstance(text, str) else None
    # A time of day without a day is no date.
    if parts is None or (parts[4] and not parts[3]):
        raise OddError("a date that is none")
    try:
        if parts[4]:
            return _read_instant(str(text), end=end)
        # Groups 2 and 3 begin with their hyphen.
        # A month or day that is missing stands for the first, and as an end for the last, below.
        year = int(parts[1])
        month = int(parts[2][1:]) if parts[2] else 1
        day = int(parts[3][1:]) if parts[3] else 1
        earliest = date(year, month, day)
    except (ValueError, OverflowError):
        raise OddError("a date that is none") from None
    latest = earliest
    if not parts[2]:
        latest = earliest.replace(month=12, day=31)
    elif not parts[3]:
        days_of_month = calendar.monthrange(year, month)[1]
        latest = earliest.replace(day=days_of_month)
    possible = latest if end else earliest
    return latest.toordinal(), possible.toordinal()


def _read_instant(text: str, *, end: bool) -> tuple[int, int]:
    """Return the days that an instant surely and possibly bounds, in UTC.

    Its own day is surely in the period only where the period begins at midnight.
    """
    instant = datetime.fromisoformat(text).astimezone(UTC)
    day = instant.date().toordinal()
    # The day of the end is not wholly in the period.
    if end:
        return day - 1, day
    is_midnight = (instant.hour, instant.minute, instant.second, instant.microsecond) == (0,) * 4
    return (day if is_midnight else day + 1), day


def _read_period(start: object, end: object) -> tuple[Days, Days]:
    """Return the days on which a period surely holds, and those on which it may."""
    # Without a date the period is open on that side.
    first_day, last_day = ALWAYS
    sure_start = first_day
    earliest_start = first_day
    if start is not None:
        sure_start, earliest_start = _read_bound(start, end=False)
    sure_end = last_day
    latest_end = last_day
    if end is not None:
        sure_end, latest_end = _read_bound(end, end=True)
    if earliest_start > latest_end:
        raise OddError("a period that ends before it begins")
    return (sure_start, sure_end), (earliest_start, latest_end)


def _intersect_periods(outer: tuple[Days, Days], inner: tuple[Days, Days]) -> tuple[Days, Days]:
    """Return the sure and possible days that two periods share."""
    return _intersect_days(outer[0], inner[0]), _intersect_days(outer[1], inner[1])


def _intersect_days(outer: Days, inner: Days) -> Days:
    return max(outer[0], inner[0]), min(outer[1], inner[1])


# --- codes


def _find_meaning(codes: Sequence[str], mapping: ConsentMapping) -> Meaning:
    """Return what a concept means, by those of its codes that are declared, which agree."""
    # One thing is coded in several systems: one declared code is enough, if none disagrees.
    meanings = {mapping.codes[code] for code in codes if code in mapping.codes}
    if not meanings:
        raise OddError(UNKNOWN, codes)
    if len(meanings) > 1:
        raise OddError("codes that contradict each other")
    return meanings.pop()


def _intersect_names(lists: Sequence[Sequence[Meaning]], kind: str, permit: bool) -> Names:
    """Return the queriers or purposes of a rule that all lists of codes limit; None for every one.

    A list that has a code of another kind limits a permit to its names, and a denial not at all:
    of two readings the one counts that permits less.
    """
    result: Names = None
    for meanings in lists:
        # None stands for a code of another kind.
        names = [getattr(meaning, kind) for meaning in meanings]
        limits = frozenset(str(name) for name in names if name is not None)
        if limits and (permit or None not in names):
            # Lists limit together: what each of them allows.
            result = limits if result is None else result & limits
    # No querier or purpose is left: a permit of nothing permits nothing, but a denial of nothing
    # would let all else pass.
    if result is not None and not result and not permit:
        raise OddError("codes that contradict each other")
    return result


def _find_level(lists: Sequence[Sequence[Meaning]], default: float | None) -> float | None:
    """Return the least level (ε) that lists of codes name, or the default where they name none."""
    levels = []
    for meanings in lists:
        levels += [meaning.level for meaning in meanings if meaning.level is not None]
    return min(levels, default=default)


def _make_rule(
    permit: bool,
    lists: Sequence[Sequence[Meaning]],
    period: tuple[Days, Days],
    level: float | None,
    exceptions: Sequence[Rule] = (),
) -> Rule:
    """Return the rule of a decision that all lists of codes limit, on sure and possible days."""
    if permit and level is None:
        raise OddError("a permit that names no level")
    queriers = _intersect_names(lists, "querier", permit)
    purposes = _intersect_names(lists, "purpose", permit)
    permitted_level = float(level or 0.0) if permit else 0.0
    return Rule(permit, permitted_level, queriers, purposes, *period, tuple(exceptions))


# --- FHIR

# Statuses of a Consent that neither permits nor denies.
_INACTIVE: Final = {
    "draft", "proposed", "rejected", "inactive", "not-done", "entered-in-error"
}  # fmt: skip
# The elements of a Consent in R4 and R5.
_CONSENT_ELEMENTS: Final = {
    "resourceType", "id", "meta", "language", "text", "contained", "extension", "identifier",
    "status", "scope", "category", "patient", "subject", "dateTime", "date", "period", "performer",
    "organization", "grantor", "grantee", "manager", "controller", "sourceAttachment",
    "sourceReference", "policy", "policyRule", "policyBasis", "policyText", "regulatoryBasis",
    "verification", "decision", "provision",
}  # fmt: skip
# The elements of a provision that have codes.
_CODED: Final = (
    "action", "securityLabel", "purpose", "class", "documentType", "resourceType", "code"
)  # fmt: skip
# All elements of a provision that are understood.
_PROVISION: Final = {"id", "extension", "type", "period", "actor", "provision", *_CODED}


def _list_consents(content: object, source: str) -> Iterator[Json]:
    """Yield the Consent resources of a bundle."""
    bundle = content if isinstance(content, dict) else {}
    is_bundle = bundle.get("resourceType") == "Bundle"
    if not is_bundle or bundle.get("type") not in ("collection", "searchset"):
        raise DataError(f"{source}: no FHIR Bundle of the type collection or searchset")
    _refuse_page(bundle, source)
    for resource in _list_resources(bundle, source):
        if resource["resourceType"] == "Consent":
            yield resource


# Links of a search to other pages of it.
_OTHER_PAGES: Final = {"next", "prev", "previous"}
# Codes of an OperationOutcome by which a server says that it did not return all there is.
_INCOMPLETE: Final = {
    "incomplete", "incomplete-results", "suppressed", "timeout", "too-costly", "throttled",
    "transient", "lock-error", "no-store", "exception",
}  # fmt: skip


def _refuse_page(bundle: Json, source: str) -> None:
    """Raise `DataError` for a bundle whose links or count say that there are more entries."""
    remedy = "give all consents in one bundle: fetch every page, and put their entries into one"
    urls: dict[str, set[str]] = {}
    for link in _list_values(bundle, "link"):
        if not isinstance(link, dict):
            raise DataError(f"{source}: a link of another form; give the bundle as the server did")
        # Anything may stand where a text is due; turned into text, it is no relation known below.
        relation = str(link.get("relation")).strip().lower()
        urls.setdefault(relation, set()).add(str(link.get("url")))
    if not _OTHER_PAGES.isdisjoint(urls):
        relation = min(_OTHER_PAGES & urls.keys())
        raise DataError(f"{source}: one page of several (it links to the {relation} one); {remedy}")
    # A search of one page has the same first and last page.
    if len(urls.get("first", set()) | urls.get("last", set())) > 1:
        raise DataError(f"{source}: one page of several (its first is not its last); {remedy}")
    if "total" not in bundle:
        return
    total = bundle["total"]
    # Not `isinstance`: True is no count.
    if type(total) is not int or total < 0:
        raise DataError(f"{source}: total = {total!r}: is no count; {remedy}")
    # A total counts what was searched for, not what came along with it.
    matches = sum(map(_is_match, _list_values(bundle, "entry")))
    if total > matches:
        raise DataError(f"{source}: {matches} entries of a total of {total}; {remedy}")


def _is_match(entry: object) -> bool:
    """Return whether an entry is one of those that a search's total counts."""
    fields = entry if isinstance(entry, dict) else {}
    search = fields.get("search")
    mode = search.get("mode") if isinstance(search, dict) else None
    if mode is not None:
        return bool(mode == "match")
    resource = fields.get("resource")
    return not (isinstance(resource, dict) and resource.get("resourceType") == "OperationOutcome")


def _list_resources(bundle: Json, source: str) -> Iterator[Json]:
    """Yield the resources of a bundle; refuse one in which a server says that some are missing."""
    for entry in _list_values(bundle, "entry"):
        resource = entry.get("resource") if isinstance(entry, dict) else None
        if not isinstance(resource, dict) or "resourceType" not in resource:
            raise DataError(f"{source}: an entry without a resource; give all that the bundle had")
        if resource["resourceType"] == "Bundle":
            raise DataError(f"{source}: a bundle within the bundle; put its entries into the one")
        if resource["resourceType"] == "OperationOutcome":
            _refuse_incomplete(resource, source)
        yield resource


def _refuse_incomplete(outcome: Json, source: str) -> None:
    """Raise `DataError` for an outcome other than a piece of information on a complete answer."""
    values = _list_values(outcome, "issue")
    # An outcome without an issue is one without a severity, and refused.
    issues = [value if isinstance(value, dict) else {} for value in values] or [{}]
    for issue in issues:
        details = issue.get("details")
        codings = _list_values(details, "coding") if isinstance(details, dict) else []
        coded = [value for value in (issue, *codings) if isinstance(value, dict)]
        codes = {str(value.get("code")) for value in coded}
        severity = issue.get("severity")
        # Only a piece of information passes, and only if it does not speak of missing results.
        if severity in ("information", "success") and _INCOMPLETE.isdisjoint(codes):
            continue
        code = plain(issue.get("code"))[:60]
        raise DataError(
            f"{source}: the server says that its answer may not be whole (an OperationOutcome of "
            f"severity {plain(severity)[:20]}, code {code}); search again, and give an answer "
            "without it"
        )


def _read_patient(resource: Json) -> str:
    """Return the id of the one patient of a Consent: `patient` in R4, `subject` in R5."""
    # Both elements at once, or neither, are refused.
    people = [resource[name] for name in ("patient", "subject") if name in resource]
    reference = _read_reference(people[0]) if len(people) == 1 else ""
    # An address of another form could be a second name of the same patient.
    person = re.fullmatch(r"Patient/([A-Za-z0-9.-]{1,64})", reference)
    if person is None:
        raise OddError("no patient, written as Patient/ID")
    return person[1]


def _read_consent(resource: Json, mapping: ConsentMapping) -> Rule | str:
    """Return the rule of a Consent, or the reason why it says nothing."""
    # First of all, since a modifier may turn the meaning of everything after it.
    _refuse_modifiers(resource)
    if resource.keys() - _CONSENT_ELEMENTS:
        raise OddError("an element that Consent does not have")
    status = resource.get("status")
    if str(status) in _INACTIVE:
        return f"status {status}"
    if status != "active":
        raise OddError("a status that is none")
    # R4 says what a consent is about by its scope; R5 has none and says it by categories.
    concepts = _list_values(resource, "scope") or _list_values(resource, "category")
    # Concepts that disagree, or none at all, leave open what the consent is about.
    about = {_is_about_data(concept, mapping) for concept in concepts}
    if about == {False}:
        return "another subject"
    if about != {True}:
        raise OddError("a scope or category that the mapping lacks")
    # A consent that says nothing of its verification is taken as given.
    for verification in _list_values(resource, "verification"):
        if _require_object(verification).get("verified", True) is not True:
            raise OddError("a consent that is not verified")
    period = _read_element_period(resource)
    # A category may name a level, and any other code there limits nothing.
    meanings = []
    for category in _list_values(resource, "category"):
        codes = _read_codes(category)
        meanings += [mapping.codes[code] for code in codes if code in mapping.codes]
    default = _find_level([meanings], mapping.default)
    is_r5 = "decision" in resource or "subject" in resource
    if is_r5:
        return _read_r5_decision(resource, period, mapping, default)
    # R4: a root provision, whose type and policy decide, and exceptions within it.
    root = _require_object(resource.get("provision", {}))
    policy = _read_policy(mapping, _list_values(resource, "policyRule"))
    provision_type = _read_type(root)
    # A type and a policy may each be missing, but not contradict one another.
    if provision_type is not None and policy is not None and provision_type != policy:
        raise OddError("a provision that contradicts its policy")
    permit = policy if provision_type is None else provision_type
    if permit is None:
        raise OddError("no decision")
    return _read_provision(root, permit, mapping, period, default, 2)


def _read_r5_decision(
    resource: Json, period: tuple[Days, Days], mapping: ConsentMapping, default: float | None
) -> Rule:
    """Return the rule of a Consent of R5: a decision, and provisions that have no type."""
    provisions = [_require_object(value) for value in _list_values(resource, "provision")]
    decision = resource.get("decision")
    if decision not in ("permit", "deny"):
        raise OddError("no decision")
    permit = decision == "permit"
    references = [_read_reference(grantee) for grantee in _list_values(resource, "grantee")]
    grantees = [_find_meaning([reference], mapping) for reference in references]
    lists = [grantees] if grantees else []
    if provisions and mapping.provisions is None:
        raise OddError("provisions of R5, of which the mapping does not say what they are")
    # R5 does not say what provisions do to a decision: the mapping does.
    if mapping.provisions == "limits" and provisions:
        # A denial counts in full, however limited: never less than it says.
        if not permit:
            return _make_rule(False, lists, period, None)
        # A permit with limits denies all but what its provisions permit.
        permits = [_read_provision(node, True, mapping, period, default, 1) for node in provisions]
        return _make_rule(False, lists, period, None, permits)
    # Exceptions decide the other way.
    exceptions = [
        _read_provision(node, not permit, mapping, period, default, 1) for node in provisions
    ]
    return _make_rule(permit, lists, period, default, exceptions)


def _read_provision(
    node: Json,
    permit: bool,
    mapping: ConsentMapping,
    outer_period: tuple[Days, Days],
    default: float | None,
    depth: int,
) -> Rule:
    """Return the rule of a provision and its exceptions.

    depth: 2 of a root, which may have exceptions, and 1 of an exception, which may have none.
    """
    # An element that is not known could limit the consent, so that none is passed over.
    unknown = node.keys() - _PROVISION
    if unknown & {"data", "dataPeriod", "expression"}:
        raise OddError("a limit to some of the data")
    if unknown:
        raise OddError("an element that a provision does not have")
    lists = []
    # Lists of codes limit together: a rule is for what all of them allow.
    for name in _CODED:
        if name in node:
            concepts = _list_values(node, name)
            lists.append([_find_meaning(_read_codes(concept), mapping) for concept in concepts])
    actors = [_require_object(value) for value in _list_values(node, "actor")]
    for actor in actors:
        if "role" in actor:
            # A role limits nothing, but it must be a declared code.
            _find_meaning(_read_codes(actor["role"]), mapping)
    if actors:
        references = [_read_reference(actor.get("reference")) for actor in actors]
        lists.append([_find_meaning([reference], mapping) for reference in references])
    period = _intersect_periods(outer_period, _read_element_period(node))
    # An exception that names no level has that of the rule around it.
    level = _find_level(lists, default)
    exceptions = []
    for value in _list_values(node, "provision"):
        inner = _require_object(value)
        inner_type = _read_type(inner)
        if depth < 2:
            raise OddError("an exception of an exception")
        if inner_type is None or inner_type == permit:
            raise OddError("an exception that excepts nothing")
        exceptions.append(_read_provision(inner, inner_type, mapping, period, level, depth - 1))
    return _make_rule(permit, lists, period, level, exceptions)


def _refuse_modifiers(value: object) -> None:
    """Raise `OddError` for an element, however deep, that changes the meaning of others."""
    match value:
        case dict():
            if value.keys() & {"modifierExtension", "implicitRules"}:
                raise OddError("a modifierExtension or implicitRules")
            for child in value.values():
                _refuse_modifiers(child)
        case list():
            for child in value:
                _refuse_modifiers(child)


def _is_about_data(concept: object, mapping: ConsentMapping) -> bool:
    """Return whether consents of this scope or category are about this data."""
    codes = _read_codes(concept)
    answers = {mapping.about[code] for code in codes if code in mapping.about}
    if len(answers) != 1:
        raise OddError("a scope or category that the mapping lacks", () if answers else codes)
    return answers.pop()


def _read_policy(mapping: ConsentMapping, concepts: Sequence[object]) -> bool | None:
    """Return whether a policy permits; None where it is declared to decide nothing."""
    for concept in concepts:
        codes = _read_codes(concept)
        # All codes of a policy must be declared, also where they decide nothing.
        _find_meaning(codes, mapping)
        decisions = {mapping.decisions[code] for code in codes if code in mapping.decisions}
        if len(decisions) > 1:
            raise OddError("codes that contradict each other")
        if decisions:
            return decisions.pop()
    return None


def _read_type(node: Json) -> bool | None:
    """Return whether a provision permits; None where it has no type."""
    provision_type = node.get("type")
    if provision_type not in (None, "permit", "deny"):
        raise OddError("a provision of no known type")
    return None if provision_type is None else provision_type == "permit"


def _read_codes(concept: object) -> list[str]:
    """Return the codes of a CodeableConcept or a Coding, as "system|code"."""
    fields = _require_object(concept)
    # A CodeableConcept has codings; a Coding is one itself.
    codings = _list_values(fields, "coding") if "coding" in fields else [fields]
    codes = []
    for value in codings:
        coding = _require_object(value)
        system = coding.get("system")
        code = coding.get("code")
        if not isinstance(code, str) or not isinstance(system, str | None):
            raise OddError(UNKNOWN)
        codes.append(code if system is None else f"{system}|{code}")
    if not codes:
        raise OddError(UNKNOWN)
    return codes


def _read_reference(value: object) -> str:
    return str(_require_object(value).get("reference"))


def _read_element_period(node: Json) -> tuple[Days, Days]:
    """Return the sure and the possible days of an element's period."""
    period = _require_object(node.get("period", {}))
    return _read_period(period.get("start"), period.get("end"))


def _require_object(value: object) -> Json:
    if not isinstance(value, dict):
        raise OddError("an element of another form")
    return value


def _list_values(node: Json, name: str) -> list[object]:
    """Return all values of an element, which may be one or several."""
    value = node.get(name, [])
    return list(value) if isinstance(value, list) else [value]


# --- tables


def _read_rows(path: Path, mapping: ConsentMapping) -> Iterator[Json]:
    """Return the cells of each row, by the role that the mapping gives to their column."""
    table = read_columns(path, mapping.columns.values())
    roles = list(mapping.columns)
    columns = []
    for role, name in mapping.columns.items():
        columns.append(read_texts(select_column(table, name, role)).tolist())
    return (dict(zip(roles, cells, strict=True)) for cells in zip(*columns, strict=True))


def _read_person(row: Json) -> str:
    if not row["person"]:
        raise OddError("no person")
    return str(row["person"])


def _read_row(row: Json, mapping: ConsentMapping) -> Rule:
    """Return the rule of a row: the cell of its level is a level's name, or a code."""
    cell = row["level"]
    # A level's name, and a code without a decision, permit.
    permit = mapping.decisions.get(cell, True)
    # Names of levels come before codes.
    if cell in mapping.levels:
        level: float | None = mapping.levels[cell]
    else:
        level = _find_meaning([cell], mapping).level
    limits = [row[kind] for kind in ("purpose", "querier") if row.get(kind)]
    lists = [[_find_meaning([code], mapping)] for code in limits]
    # An empty cell sets no bound.
    period = _read_period(row.get("from") or None, row.get("until") or None)
    return _make_rule(permit, lists, period, mapping.default if level is None else level)


# --- DPV

# The two addresses of the Data Privacy Vocabulary.
_DPV: Final = ("https://w3id.org/dpv#", "http://www.w3.org/ns/dpv#")
# Statuses of a consent that permits.
_VALID: Final = {"ConsentGiven", "RenewedConsentGiven"}
# Statuses of a consent that denies.
_DENYING: Final = {"ConsentRefused", "ConsentWithdrawn", "ConsentRevoked", "ConsentInvalidated"}
# Statuses of a consent that does neither.
_SILENT: Final = {"ConsentExpired", "ConsentRequested", "ConsentRequestDeferred", "ConsentUnknown"}
# Properties whose values limit a consent.
_LIMITS: Final = (
    "hasPurpose", "hasRecipient", "hasPersonalData", "hasProcessing", "hasLegalBasis", "hasData"
)  # fmt: skip
# All properties of DPV that are understood.
_DPV_PROPERTIES: Final = {
    "hasDataSubject", "hasConsentStatus", "hasDuration", "hasExpiry", "isIndicatedAtTime",
    "isIndicatedBy", "hasIndicationMethod", "hasDataController", "hasNotice", "hasConsentNotice",
    "hasJurisdiction", "hasIdentifier", *_LIMITS,
}  # fmt: skip
# The property of RDF by which a node has a literal value.
_VALUE: Final = "http://www.w3.org/1999/02/22-rdf-syntax-ns#value"
# Vocabularies of properties that describe a record and limit nothing, and those properties.
_DESCRIPTIVE: Final = ("http://purl.org/dc/terms/", "http://www.w3.org/2000/01/rdf-schema#")
_DESCRIPTIVE_PROPERTIES: Final = {
    "title", "description", "identifier", "created", "modified", "label"
}  # fmt: skip


def _list_records(content: object, source: str) -> Iterator[Json]:
    """Yield the consent records of a JSON-LD document, with all names written out."""
    if not isinstance(content, dict):
        raise DataError(f"{source}: no JSON-LD object; give one with @context and @graph")
    # A context by address would have to be fetched, and may change: only a table is taken.
    prefixes = content.get("@context", {})
    if not isinstance(prefixes, dict) or not all(isinstance(iri, str) for iri in prefixes.values()):
        raise DataError(f"{source}: @context: give a table from prefixes to IRIs, and no address")
    record_types = {f"{space}{kind}" for space in _DPV for kind in ("Consent", "ConsentRecord")}
    nodes = content.get("@graph", [content])
    # A graph that is no list goes the way of a node that is none, and is refused.
    for node in nodes if isinstance(nodes, list) else [None]:
        if not isinstance(node, dict):
            raise DataError(f"{source}: @graph: give a list of records")
        # A context has served its end, and its prefixes are no properties of the record.
        fields = {key: value for key, value in node.items() if key != "@context"}
        record = _expand_names(fields, prefixes)
        types = {str(kind) for kind in _list_values(record, "@type")}
        if record_types & types:
            yield record


def _expand_names(node: Json, prefixes: Json) -> Json:
    """Return a node with its keys, types and ids as IRIs; literal values stay."""

    def expand_name(name: object) -> object:
        if not isinstance(name, str):
            return name
        # A compact IRI, prefix:suffix; anything else stays as it is written.
        prefix, colon, suffix = name.partition(":")
        return prefixes[prefix] + suffix if colon and prefix in prefixes else name

    def expand_value(value: object, key: str) -> object:
        if isinstance(value, dict):
            return {str(expand_name(name)): expand_value(v, name) for name, v in value.items()}
        if isinstance(value, list):
            return [expand_value(item, key) for item in value]
        # Only what stands under @value is a literal, even where it looks like a prefixed name.
        return value if key == "@value" else expand_name(value)

    return _require_object(expand_value(node, ""))


def _list_dpv_values(record: Json, name: str) -> list[object]:
    """Return the values of a property of DPV, under either address."""
    values = []
    for space in _DPV:
        values += _list_values(record, f"{space}{name}")
    return values


def _read_property(record: Json, name: str) -> list[list[str]]:
    """Return the IRIs or the text of each value of a property of DPV."""
    result = []
    for value in _list_dpv_values(record, name):
        # A bare value is a literal.
        node = value if isinstance(value, dict) else {"@value": value}
        if node.keys() - {"@id", "@type", "@value"}:
            raise OddError("a term that is not understood")
        # A literal has a value; a term is named by its id, or by its types.
        keys = ("@value",) if "@value" in node else ("@id", "@type")
        result.append([str(term) for key in keys for term in _list_values(node, key)])
    return result


def _read_subject(record: Json) -> str:
    """Return the id of a record's one data subject."""
    people = _list_dpv_values(record, "hasDataSubject")
    subject = people[0] if len(people) == 1 else None
    person = subject.get("@id") if isinstance(subject, dict) else subject
    if not isinstance(person, str) or not person:
        raise OddError("no data subject, or several")
    return person


def _read_record(record: Json, mapping: ConsentMapping) -> Rule | str:
    """Return the rule of a DPV record, or the reason why it says nothing."""
    for key in record.keys() - {"@id", "@type"}:
        if not _is_understood(key):
            raise OddError("a term that is not understood")
    statuses = _read_statuses(record)
    # Neither given nor denied: the record says nothing.
    if not statuses & (_VALID | _DENYING):
        return f"status {min(statuses)}"
    # Any denial outweighs all other statuses.
    permit = not statuses & _DENYING
    if permit and statuses & _SILENT:
        raise OddError("several statuses that contradict each other")
    lists = []
    for name in _LIMITS:
        meanings = [_find_meaning(terms, mapping) for terms in _read_property(record, name)]
        if meanings:
            lists.append(meanings)
    starts = _read_terms(record, "isIndicatedAtTime")
    period = _read_period(_require_single(starts), _require_single(_read_ends(record)))
    return _make_rule(permit, lists, period, _find_level(lists, mapping.default))


def _is_understood(key: str) -> bool:
    """Return whether a property is one of DPV that is understood, or a descriptive one."""
    for space in (*_DPV, *_DESCRIPTIVE):
        if key.startswith(space):
            properties = _DPV_PROPERTIES if space in _DPV else _DESCRIPTIVE_PROPERTIES
            return key[len(space) :] in properties
    return False


def _read_statuses(record: Json) -> set[str]:
    """Return the statuses of a record, at least one; each value names exactly one."""
    known = _VALID | _DENYING | _SILENT
    values = _read_property(record, "hasConsentStatus")
    if not values:
        raise OddError("a status that is none")
    statuses: set[str] = set()
    for terms in values:
        named = known & {_strip_dpv(term) for term in terms}
        if len(named) != 1:
            raise OddError("a status that is none")
        statuses |= named
    return statuses


def _read_terms(record: Json, name: str) -> list[str]:
    """Return the IRIs or texts of all values of a property together."""
    return [term for terms in _read_property(record, name) for term in terms]


def _read_ends(record: Json) -> list[str]:
    """Return the dates at which a record ends: an expiry, or a duration until a time."""
    ends = _read_terms(record, "hasExpiry")
    for duration in _list_dpv_values(record, "hasDuration"):
        node = _require_object(duration)
        types = [_strip_dpv(str(kind)) for kind in _list_values(node, "@type")]
        if types != ["UntilTimeDuration"]:
            raise OddError("a duration that is not until a time")
        if node.keys() - {"@id", "@type", _VALUE}:
            raise OddError("a term that is not understood")
        value = node.get(_VALUE)
        ends.append(str(value.get("@value") if isinstance(value, dict) else value))
    return ends


def _require_single(dates: Sequence[str]) -> str | None:
    """Return the one date of a list, or None where there is none."""
    if len(dates) > 1:
        raise OddError("several dates where one is meant")
    return dates[0] if dates else None


def _strip_dpv(iri: str) -> str:
    """Return a term of DPV without its address, and any other text as it is."""
    for space in _DPV:
        if iri.startswith(space):
            return iri[len(space) :]
    return iri
