"""apiece ledger: the accounts of everyone's spending."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece._files import BACKUP, EXPORT
from apiece._identifiers import find_period
from apiece._json import loads
from apiece._text import percent
from apiece.cli._command import (
    DIALECT,
    NUMBER_OR_NAME,
    PATH,
    CommandGroup,
    Decorator,
    Output,
    add_table_options,
    echo,
    emit,
    format_table,
    make_dialect,
    option,
    read_plan,
    read_stdin,
    read_text,
    refuse_given,
    require_delta,
    warn,
)
from apiece.cli.withdraw import account_of, receipt_text
from apiece.errors import AnalysisError, DataError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from apiece._types import Flags, Ids, Json
    from apiece.budgets import Budgets
    from apiece.filters import Costs
    from apiece.ledger import Head, Ledger

EXAMPLE = """
\b
Example:
  apiece ledger init sqlite:///people.db --data people.csv --person id \\
         --epsilon consent_epsilon --delta 1e-6
  apiece query people.parquet "mean(income) by region" --ledger sqlite:///people.db …
  apiece ledger verify sqlite:///people.db
"""

slack_option = option(
    "--slack",
    type=float,
    help="Share of δ to keep for losses that are not Gaussian.  [default: 0.1]",
)
url_argument = click.argument("url", default="sqlite:///people.db")


@click.group(cls=CommandGroup, epilog=EXAMPLE)
def command() -> None:
    """Keep one account of privacy loss per person, across trainings and queries.

    URL is sqlite:///file.db or postgresql://user@host/name.
    """


def subcommand(short_help: str, *examples: str) -> Decorator:
    """Return the decorator of a sub-command, with its line in the help and its examples."""
    title = "Example" if len(examples) == 1 else "Examples"
    lines = "".join(f"\n  {example}" for example in examples)
    return command.command(short_help=short_help, epilog=f"\b\n{title}:{lines}")


def _open(url: str) -> Ledger:
    """Return the ledger at an address, which must be there."""
    from apiece.ledger import Ledger

    return Ledger.open(url, create=False)


@subcommand("Make a ledger, and open accounts.", "apiece ledger init sqlite:///people.db")
@url_argument
@option("--data", help="CSV or Parquet file of the people to enroll.")
@option("--person")
@option("--epsilon", help="Column of each person's ε; with --data.")
@option(
    "--delta",
    type=NUMBER_OR_NAME,
    help="One δ for all, or the column of each person's δ; with --data.",
)
@option("--levels")
@option("--no-limit-cap")
@slack_option
@option("--like", type=PATH, help="Find --slack for trainings by this plan.")
@option("--times", type=int, help="Number of those trainings; with --like.  [default: 1]")
@add_table_options
@option("--json")
def init(url: str, data: Path | None, as_json: bool, **flags: Any) -> None:
    """Make a ledger, and open accounts for the people in a table: both, or neither.

    On an existing ledger it enrolls new people and changes budgets that differ; a budget below
    what is spent is refused.

    --slack is the share of everyone's δ kept for losses that are not Gaussian, such as those of
    trainings with sampled batches. Trainings in which a record joins few steps need more: --like
    PLAN finds, for each person's ε, the share with which PLAN's promises cost the least.
    """
    from apiece.budgets import Budgets
    from apiece.budgets.groups import cap_note, doubts_of_values

    cap, like, budgets, doubts = flags["no_limit_cap"], flags["like"], None, []
    if flags["slack"] is not None and like is not None:
        raise InputError("--slack: --like finds it; give one of the two")
    if flags["times"] is not None and like is None:
        raise InputError("--times: goes with --like; give --like PLAN too")
    if data is None:
        refuse_given(flags, "goes with a table of people; give --data too")
    else:
        if None in (flags["person"], flags["epsilon"]):
            raise InputError("--data: needs --person, --epsilon and --delta beside it")
        budgets = Budgets.from_frame(
            data,
            epsilon=flags["epsilon"],
            delta=require_delta(flags["delta"]),
            person=flags["person"],
            levels=flags["levels"],
            no_limit_cap=cap,
            dialect=make_dialect(flags),
        )
        doubts = doubts_of_values(budgets.groups)
    times = 1 if flags["times"] is None else flags["times"]
    new = _made(url, budgets, flags["slack"], like, times)
    warn(doubts)
    note = "" if cap is None else f"; {cap_note(cap)}"
    document = {"enrolled": new, "no_limit_cap": cap}
    emit(as_json, document, f"ledger with {new} people enrolled{note}")


def _made(
    url: str, budgets: Budgets | None, slack: float | None, like: Path | None, times: int
) -> int:
    """Make the ledger if there is none; return how many people were enrolled."""
    from apiece.ledger import Ledger, account_shares

    if budgets is None:
        Ledger.open(url)
        return 0
    share: object = slack
    if like is not None:
        share = account_shares(read_plan(like), budgets.epsilon, times=times)
    people = (budgets.ids, budgets.epsilon, budgets.delta)
    try:
        ledger = _open(url)
    except DataError:
        Ledger.make(url, *people, slack=share)
        return len(budgets)
    return ledger.enroll(*people, slack=share)


@subcommand(
    "Open accounts as people consent.",
    "apiece ledger enroll people.db --consents bundle.json --mapping consents.toml --delta 1e-6",
)
@url_argument
@option("--consents", type=PATH, required=True, help="FHIR Bundle, CSV with dates, or DPV records.")
@option(
    "--mapping", type=PATH, required=True, help="TOML file that says what their codes stand for."
)
@option("--delta", type=float, required=True, help="One δ for all.")
@option(
    "--on",
    metavar="DAY",
    help="Day on which a consent must be in force, as 2026-05-01.  [default: today, in UTC]",
)
@option("--leave-out", is_flag=True, help="Leave out people whose consents are not understood.")
@slack_option
@option("--scope", help="Only those who permit it are in --out, as querier=clinic,purpose=care.")
@option("--out", type=Output(EXPORT), help="Parquet file of those who permit: person, epsilon.")
@option("--json")
def enroll(url: str, consents: Path, mapping: Path, as_json: bool, **flags: Any) -> None:
    """Open or change accounts as all these consents say; from now on no charge goes beyond them.

    Levels become budgets. Whoever does not permit a scope, or whose consent has ended, is charged
    nothing there. Whoever has an account and no consent in force is charged nothing. Run it again
    as consents change. --out, for `apiece train --people`, is data about people.
    """
    from apiece.budgets import ConsentMapping, read_consents
    from apiece.ledger import Ledger, enroll_consents
    from apiece.ledger.accounts import write_parquet
    from apiece.ledger.consenting import permitting
    from apiece.ledger.scopes import read_scope

    if flags["scope"] is not None and flags["out"] is None:
        raise InputError("--scope: says who is in --out; give that too")
    consent_records = read_consents(consents, ConsentMapping.from_toml(read_text(mapping)))
    day = None
    if flags["on"] is not None:
        day = find_period(flags["on"], "day")
        if day is None:
            raise InputError(f"--on = {flags['on']!r}: must be a day, as 2026-05-01")
    warn(consent_records.name_unknown_codes())
    asked = consent_records.on(day, leave_out=flags["leave_out"])
    scope = {} if flags["scope"] is None else read_scope(flags["scope"])
    ledger = Ledger.open(url)
    new = enroll_consents(ledger, asked, flags["delta"], slack=flags["slack"])
    if flags["out"] is not None:
        write_parquet([permitting(asked, scope)], flags["out"], [*ledger.store.files, consents])
    document = {"enrolled": new, "on": asked.day.isoformat(), "aside": dict(asked.aside)}
    aside = "".join(f"; {n} consents of {why} say nothing" for why, n in asked.aside.items())
    emit(as_json, document, [f"ledger with {new} people enrolled, as of {asked.day}{aside}"])


@subcommand(
    "Copy a ledger to a file, while it is used.",
    "apiece ledger backup people.db --out people.backup",
)
@url_argument
@option(
    "--out", type=Output(BACKUP), required=True, help="File of the backup; an earlier one goes."
)
@option("--json")
def backup(url: str, out: Path, as_json: bool) -> None:
    """Copy the ledger on SQLite at URL, as it is at one moment, to a file for its owner alone.

    Keep the head that it prints apart from the file. The backup is no ledger: nobody can be charged
    in it. Of a ledger in PostgreSQL it says which tools copy it.
    """
    from apiece.ledger import back_up_ledger

    head = back_up_ledger(_open(url), out)
    lines = [f"{out}: the ledger up to entry {head.number}", f"head {head.number}:{head.digest}"]
    emit(as_json, {"out": str(out), "head": head._asdict()}, lines)


@subcommand(
    "Put a backup where its ledger was.",
    "mv people.db people.db.damaged",
    "apiece ledger restore people.backup people.db",
)
@click.argument("backup", type=PATH)
@click.argument("url")
@option("--head", help="number:digest of the last entry that you know; where nothing keeps it.")
@option("--json")
def restore(backup: Path, url: str, head: str | None, as_json: bool) -> None:
    """Put BACKUP at URL, an SQLite file that is not there: all of it, or nothing.

    It is refused where it lacks an entry that the head file, the anchor or --head has, because what
    that entry charged could be spent again. Leave the head file where it is, and the anchor.
    """
    from apiece.ledger import restore_ledger

    last = restore_ledger(backup, url, head=_head_from(head))
    lines = [f"{url}: the ledger up to entry {last.number}", f"head {last.number}:{last.digest}"]
    emit(as_json, {"head": last._asdict()}, lines)


def _head_from(text: str | None) -> Head | None:
    """Return the head in `number:digest`. Raises `InputError` for another text."""
    from apiece.ledger.anchor import read_head

    head = None if text is None else read_head(text)
    if text is not None and head is None:
        raise InputError(
            f"--head: {text!r} is not a head; give number:digest, as status printed it"
        )
    return head


@subcommand("Set or show the policy of scopes.", "apiece ledger policy people.db policy.toml")
@click.argument("url")
@click.argument("file", type=PATH, required=False)
@option("--json")
def policy(url: str, file: Path | None, as_json: bool) -> None:
    """Let the policy in FILE (TOML) hold from now on, or say which one holds.

    It declares who may spend how much of each account: tables [querier.NAME], [purpose.NAME] and
    [source.NAME] with quota, sure (of queriers) and renews; and unit and every.
    """
    from apiece.ledger.scopes import WHOLE

    ledger = _open(url)
    policy = ledger.policy if file is None else ledger.set_policy(read_text(file))
    quotas: dict[str, Json] = {kind: {} for kind in policy.quotas}
    rows = [["scope", "at most", "sure of", "renews"]]
    for kind, own in policy.quotas.items():
        for name, q in own.items():
            most, sure = q.most / WHOLE, q.sure / WHOLE
            quotas[kind][name] = {
                "quota": round(most, 6), "sure": round(sure, 6), "renews": q.renews
            }  # fmt: skip
            shares = [percent(round(share, 5)) for share in (most, sure)]
            rows.append([f"{kind} {name}", *shares, "yes" if q.renews else ""])
    document = {name: getattr(policy, name) for name in ("version", "unit", "every", "protects")}
    named = f"policy {policy.version}" if policy.version else "no policy: accounts are all there is"
    lines = [named, *(format_table(rows) if policy.quotas else []), policy.protects]
    emit(as_json, document | {"quotas": quotas}, lines)


@subcommand(
    "Charge an analysis made outside of apiece.",
    """apiece ledger charge people.db '{"laplace": {"noise_multiplier": 20}}' --analysis May""",
    'apiece ledger charge people.db --analysis "median in May" --bounded-range 0.1',
    'apiece ledger export people.db --table paid --analysis "median in May" --out paid.parquet',
    'apiece ledger commit people.db --analysis "median in May" --result 41',
)
@click.argument("url")
@click.argument("source", required=False)
@option("--analysis", required=True, help="Name of the analysis, which no other has.")
@option("--pure", type=float, help="ε of any pure ε-differentially private mechanism.")
@option("--bounded-range", type=float, help="η of an exponential mechanism, which is its ε.")
@option("--data", help="CSV or Parquet file of the people who are in the analysis.")
@option("--person", help="Column of persons' ids; with --data.")
@option("--scope", help="Scope of the charge, as querier=clinic,purpose=care.")
@add_table_options
@option("--json")
def charge(
    url: str, source: str | None, analysis: str, data: Path | None, as_json: bool, **flags: Any
) -> None:
    """Charge everyone, or the people of a table, for an analysis that is made outside of apiece.

    SOURCE is a mechanism's JSON as apiece account reads it, or a file with it, or - for stdin:
    {"laplace": {"noise_multiplier": 20}}, {"discrete_gaussian": …}, {"repeated": …}. Its noise is
    relative to the largest contribution of a person. --pure and --bounded-range stand for a
    mechanism of which no more is known.

    Whoever cannot pay has to be left out: `apiece ledger export --table paid` writes the ids of
    those who paid. Charge before rows are read, and commit when the answer is released.
    """
    from apiece.ledger import reserve_alike
    from apiece.ledger.scopes import read_scope

    if flags["person"] is None and data is not None:
        raise InputError("--data: needs --person beside it")
    if data is None:
        refuse_given(("person", *DIALECT), "goes with a table of people; give --data too")
    ledger = _open(url)
    if flags["scope"] is not None:
        ledger = ledger.within(read_scope(flags["scope"]))
    ids = None if data is None else _people_of(ledger, data, flags)
    costs, terms = _costs_of(ledger, source, flags["pure"], flags["bounded_range"])
    reserve_alike(ledger, analysis, costs, ids, terms=terms)
    status = ledger.status(analysis, terms)
    emit(as_json, {"analysis": analysis, "status": status}, [f"analysis {analysis}: {status}"])


def _people_of(ledger: Ledger, data: Path, flags: Flags) -> Ids:
    """Return the ids of a table's people, as the ledger writes them."""
    from apiece.budgets.units import person_column
    from apiece.datasets import read_table
    from apiece.ledger.codec import read_ids

    texts = person_column(read_table(data, make_dialect(flags)), flags["person"])
    people = list(dict.fromkeys(texts.tolist()))
    ids, known = read_ids(people, ledger.id_kind)
    if not known.all():
        strange = [text for text, there in zip(people, known, strict=True) if not there]
        raise DataError(f"--data: {strange[0]!r} has no account ({len(strange)} such); enroll them")
    return ids


def _costs_of(
    ledger: Ledger, source: str | None, pure: float | None, bounded_range: float | None
) -> tuple[Costs, Json]:
    """Return what is charged, and its terms."""
    from apiece.accounting import gaussian_of_bounded_range, gaussian_of_pure
    from apiece.filters import Costs, costs_of
    from apiece.mechanisms import from_json
    from apiece.mechanisms.algebra import to_dict

    if [source, pure, bounded_range].count(None) != 2:
        raise InputError("SOURCE: give one of a mechanism's JSON, --pure and --bounded-range")
    if pure is not None:
        return Costs.fixed(gaussian_of_pure(pure) ** 2), {"pure": pure}
    if bounded_range is not None:
        cost = gaussian_of_bounded_range(bounded_range) ** 2
        return Costs.fixed(cost), {"bounded_range": bounded_range}
    text = str(source)
    if text == "-":
        text = read_stdin()
    elif not text.lstrip().startswith("{"):
        text = read_text(Path(text))
    mechanism = from_json(text)
    least = [float(terms["delta"].min()) for _, terms, _ in ledger.account_blocks()]
    if not least:
        raise DataError("ledger: it has no accounts to charge; enroll people first")
    return costs_of([mechanism], min(least)), {"mechanism": to_dict(mechanism)}


@subcommand(
    "Record that an analysis is released.",
    "apiece ledger commit people.db --analysis 'median in May' --result 41",
)
@click.argument("url")
@option("--analysis", required=True, help="Name of an analysis that was charged.")
@option("--result", help="Answer for the ledger to keep, as JSON.")
@option("--json")
def commit(url: str, analysis: str, result: str | None, as_json: bool) -> None:
    """Record that an analysis is being released, and print the result to release.

    Of several commits the first counts, and all print its result: one charge never pays for two
    answers.
    """
    try:
        value = None if result is None else loads(result, "--result")
    except DataError as error:
        reason = str(error).partition(";")[0]
        raise InputError(f"{reason}; write text as '\"text\"'") from None
    released = _open(url).commit(analysis, value)
    emit(as_json, {"analysis": analysis, "result": released}, [json.dumps(released)])


@subcommand("How far the history goes.", "apiece ledger status sqlite:///people.db --json")
@url_argument
@option("--analysis", help="Say whether this analysis is reserved or committed.")
@option("--left", is_flag=True, help="Count the accounts by what they have left. PRIVATE.")
@option(
    "--noise-stddev",
    type=float,
    help="Release --left with noise of this size, under the name --analysis.",
)
@option("--json")
def status(
    url: str, analysis: str | None, left: bool, noise_stddev: float | None, as_json: bool
) -> None:
    """Say how far the history goes; nothing about anyone's spending, unless asked.

    --left says how many accounts have how much left: data about people. With --noise-stddev and
    --analysis these counts get noise, which everyone counted pays for, and may be shown.
    """
    ledger = _open(url)
    if noise_stddev is not None and (analysis is None or not left):
        raise InputError("--noise-stddev: needs --left, and --analysis as the release's name")
    counts = _left(ledger, analysis, noise_stddev) if left else None
    head = ledger.head()
    document: Json = {"people": ledger.people, "head": head._asdict()}
    lines = [f"{document['people']} people", f"head {head.number}:{head.digest}"]
    if counts is not None:
        document["left"] = counts
        noise = counts["noise_stddev"]
        title = "PRIVATE, data about people" if noise is None else f"with noise of {noise:g} a step"
        rows = [["at least this share\nof the account is left", "for queries", "for trainings"]]
        for share, *each in zip(
            *(counts[n] for n in ("shares", "queries", "trainings")), strict=True
        ):
            rows.append([percent(share), *(f"{count:,}" for count in each)])
        lines += [f"how many accounts, {title}:", *format_table(rows)]
        lines.append("Gaussian queries use the budget alone; trainings use the slack too.")
    if analysis is not None:
        status = ledger.status(analysis)
        if status == "unknown":
            raise AnalysisError(
                f"--analysis {analysis!r}: unknown to this ledger; give one that apiece ledger "
                "history lists"
            )
        document["analysis"] = {"id": analysis, "status": status}
        lines.append(f"analysis {analysis}: {status}")
    emit(as_json, document, lines)


def _left(ledger: Ledger, analysis: str | None, noise_stddev: float | None) -> Json:
    """Return how many accounts have which share left: as they are, or released."""
    from apiece.ledger import standing
    from apiece.ledger.reports import SHARES

    if noise_stddev is not None:
        from apiece.queries import release_standing

        return release_standing(ledger, str(analysis), noise_stddev=noise_stddev)
    counts = {kind: each.tolist() for kind, each in standing(ledger).items()}
    return {"shares": list(SHARES), "noise_stddev": None, **counts}


@subcommand(
    "What one person's account was charged.", "apiece ledger receipt sqlite:///people.db ann"
)
@click.argument("url")
@click.argument("person")
@option("--head", type=PATH, help="Published head: print the receipt with its proofs, as JSON.")
@option("--json")
def receipt(url: str, person: str, head: Path | None, as_json: bool) -> None:
    """Say what PERSON's account was charged, by which analyses: a receipt for that person.

    It is data about a person. All charges together keep the person's budget. With --head it can be
    checked without the ledger: apiece ledger check.
    """
    from apiece.ledger import receipt as receipt_of

    ledger = _open(url)
    if head is not None:
        echo(json.dumps(ledger.prove(account_of(ledger, person), _document(head, "--head"))))
        return
    receipt = receipt_of(ledger, account_of(ledger, person))
    emit(as_json, receipt.to_dict(), receipt_text(receipt))


def _document(path: Path, what: str, key: str = "accounts", command: str = "head") -> Json:
    """Return the head in a file, or the document with another key that a command printed."""
    document = loads(read_text(path), what)
    if not isinstance(document, dict) or key not in document:
        raise DataError(f"{what} {path}: is not one; give what `apiece ledger {command}` printed")
    return document


@subcommand(
    "Publish the head of the history.",
    "apiece ledger head people.db > head-1.json",
    "apiece ledger head people.db --since head-1.json > head-2.json",
)
@url_argument
@option("--since", type=PATH, help="Head published before: prove that this one goes on from it.")
@option("--json")
def head(url: str, since: Path | None, as_json: bool) -> None:
    """Print the head of the history, as JSON, for everyone to keep: it tells nothing about anyone.

    It binds all entries and everyone's account, in two Merkle trees as in RFC 6962.
    """
    before = None if since is None else _document(since, "--since")
    echo(json.dumps(_open(url).publish(before)))


@subcommand(
    "Check a receipt against a published head.", "apiece ledger check receipt.json head-2.json"
)
@click.argument("receipt", type=PATH)
@click.argument("head", type=PATH)
@option("--json")
def check(receipt: Path, head: Path, as_json: bool) -> None:
    """Check RECEIPT against HEAD, without the ledger; exit 1 and name what does not hold.

    RECEIPT is what `apiece ledger receipt --head` printed. HEAD is the same head, or a later one
    published with --since.
    """
    from apiece.ledger import check_receipt

    problems = check_receipt(
        _document(receipt, "RECEIPT", "account", "receipt --head"), _document(head, "HEAD")
    )
    _checked(as_json, {"ok": not problems}, problems, "does not hold" if problems else "ok")


def _checked(as_json: bool, document: Json, problems: Sequence[str], verdict: str) -> None:
    """Print what was checked, and exit with 1 where there are problems."""
    lines = [*(f"PROBLEM {each}" for each in problems), verdict]
    emit(as_json, document | {"problems": list(problems)}, lines)
    if problems:
        click.get_current_context().exit(1)


@subcommand("List every entry.", "apiece ledger history sqlite:///people.db")
@url_argument
@option("--json")
def history(url: str, as_json: bool) -> None:
    """List every entry: what was enrolled, reserved and committed, with digests."""
    entries = list(_open(url).history())
    names = ("number", "kind", "at", "analysis", "digest")
    lines = [
        f"{e.number:6d}  {e.at}  {e.kind:8s} {e.digest[:16]}  {e.analysis or ''}" for e in entries
    ]
    emit(as_json, [{name: getattr(e, name) for name in names} for e in entries], lines)


@subcommand(
    "Recompute every digest and balance.",
    "apiece ledger verify sqlite:///people.db --head 12:9f0c…",
)
@url_argument
@option("--head", help="number:digest that `status` printed, kept outside the database.")
@option("--json")
def verify(url: str, head: str | None, as_json: bool) -> None:
    """Recompute every digest and balance; exit 1 and name what does not add up."""
    verification = _open(url).verify(_head_from(head))
    document = {name: getattr(verification, name) for name in ("ok", "entries", "people")}
    document["notes"] = list(verification.notes)
    warn(verification.notes)
    verdict = (
        "ok" if verification.ok else f"{len(verification.problems)} problems; restore a backup"
    )
    said = f"{verification.entries} entries, {verification.people} people: {verdict}"
    _checked(as_json, document | {"head": verification.head._asdict()}, verification.problems, said)


@subcommand(
    "Write accounts, history or who paid to Parquet.",
    "apiece ledger export sqlite:///people.db --out accounts.parquet",
)
@url_argument
@option("--out", type=Output(EXPORT), required=True, help="Parquet file to write.")
@option("--table", default="accounts", help="accounts, history or paid.")
@option("--analysis", help="Analysis that was paid for; with --table paid.")
@option("--json")
def export(url: str, out: Path, table: str, analysis: str | None, as_json: bool) -> None:
    """Write accounts, who paid for an analysis, or the history to a Parquet file.

    The first two are data about people, and so is how many paid, which is not printed.
    """
    rows = _open(url).export(out, table, analysis_id=analysis)
    document = {"out": str(out), "table": table} | ({} if table == "paid" else {"rows": rows})
    emit(as_json, document, str(out) if table == "paid" else f"{out}: {rows} rows")
