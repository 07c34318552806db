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
from apiece.cli.withdraw import find_account, format_receipt
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

# Parts that several sub-commands have in one wording.
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


def add_subcommand(short_help: str, *examples: str) -> Decorator:
    """Return the decorator of a sub-command, with its line in the help and its examples."""
    title = "Example" if len(examples) == 1 else "Examples"
    lines = "".join(f"\n  {example}" for example in examples)
    return command.command(short_help=short_help, epilog=f"\b\n{title}:{lines}")


def _open_ledger(url: str) -> Ledger:
    """Return the ledger at an address, which must be there."""
    from apiece.ledger import Ledger

    return Ledger.open(url, create=False)


@add_subcommand("Make a ledger, and open accounts.", "apiece ledger init sqlite:///people.db")
@url_argument
@option("--data", help="CSV or Parquet file of the people to enroll.")
@option("--person")
@option("--epsilon", help="Column of each person's ε; with --data.")
@option("--rho", help="Column of each person's ρ, in place of --epsilon.")
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

    --rho is for people who were promised ρ-zero-concentrated privacy: what is charged to them has
    at most that ρ, all together. --delta is then the δ at which receipts say ε.

    --slack is the share of everyone's δ kept for losses that are not Gaussian, such as those of
    trainings with sampled batches. Trainings in which a record joins few steps need more: --like
    PLAN finds, for each person's ε, the share with which PLAN's promises cost the least.
    """
    from apiece.budgets import Budgets
    from apiece.budgets.groups import describe_cap, list_value_doubts

    cap = flags["no_limit_cap"]
    like = flags["like"]
    if flags["slack"] is not None and like is not None:
        raise InputError("--slack: --like finds it; give one of the two")
    if flags["times"] is not None and like is None:
        raise InputError("--times: goes with --like; give --like PLAN too")
    budgets = None
    doubts = []
    if data is None:
        refuse_given(flags, "goes with a table of people; give --data too")
    else:
        column = flags["epsilon"] if flags["rho"] is None else flags["rho"]
        if None in (flags["person"], column):
            raise InputError("--data: needs --person, --epsilon or --rho, and --delta beside it")
        if None not in (flags["epsilon"], flags["rho"]):
            raise InputError("--rho: --epsilon is given too; give one of the two")
        budgets = Budgets.from_frame(
            data,
            epsilon=column,
            delta=require_delta(flags["delta"]),
            person=flags["person"],
            levels=flags["levels"],
            no_limit_cap=cap,
            dialect=make_dialect(flags),
        )
        if flags["rho"] is None:
            doubts = list_value_doubts(budgets.groups)
    times = 1 if flags["times"] is None else flags["times"]
    if flags["rho"] is not None and (flags["slack"] is not None or like is not None):
        raise InputError("--rho: such accounts have no slack; leave --slack and --like out")
    promise = "epsilon" if flags["rho"] is None else "rho"
    enrolled = _enroll_people(url, budgets, promise, flags["slack"], like, times)
    warn(doubts)
    line = f"ledger with {enrolled} people enrolled"
    if cap is not None:
        line += f"; {describe_cap(cap)}"
    emit(as_json, {"enrolled": enrolled, "no_limit_cap": cap}, line)


def _enroll_people(
    url: str,
    budgets: Budgets | None,
    promise: str,
    slack: float | None,
    like: Path | None,
    times: int,
) -> int:
    """Make the ledger if there is none; return how many people were enrolled."""
    from apiece.ledger import Ledger, account_shares

    if budgets is None:
        Ledger.open(url)
        return 0
    shares: object = slack
    if like is not None:
        shares = account_shares(read_plan(like), budgets.epsilon, times=times)
    terms: dict[str, Any] = {promise: budgets.epsilon, "delta": budgets.delta, "slack": shares}
    try:
        ledger = _open_ledger(url)
    except DataError:
        # Made with its people in one transaction: a mistake in a budget leaves no empty ledger
        # behind.
        Ledger.make(url, budgets.ids, **terms)
        return len(budgets)
    return ledger.enroll(budgets.ids, **terms)


@add_subcommand(
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
    from apiece.ledger.consenting import list_permitting
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
    standing = consent_records.on(day, leave_out=flags["leave_out"])
    scope = {} if flags["scope"] is None else read_scope(flags["scope"])
    ledger = Ledger.open(url)
    enrolled = enroll_consents(ledger, standing, flags["delta"], slack=flags["slack"])
    if flags["out"] is not None:
        # The file must be neither the ledger nor what was read.
        inputs = [*ledger.store.files, consents]
        write_parquet([list_permitting(standing, scope)], flags["out"], inputs)
    document = {
        "enrolled": enrolled,
        "on": standing.day.isoformat(),
        "aside": dict(standing.aside),
    }
    line = f"ledger with {enrolled} people enrolled, as of {standing.day}"
    for reason, count in standing.aside.items():
        line += f"; {count} consents of {reason} say nothing"
    emit(as_json, document, [line])


@add_subcommand(
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

    head = back_up_ledger(_open_ledger(url), out)
    lines = [f"{out}: the ledger up to entry {head.number}", f"head {head.number}:{head.digest}"]
    emit(as_json, {"out": str(out), "head": head._asdict()}, lines)


@add_subcommand(
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

    restored = restore_ledger(backup, url, head=_parse_head(head))
    lines = [
        f"{url}: the ledger up to entry {restored.number}",
        f"head {restored.number}:{restored.digest}",
    ]
    emit(as_json, {"head": restored._asdict()}, lines)


def _parse_head(text: str | None) -> Head | None:
    """Return the head in `number:digest`, None without a text; raise for another text."""
    from apiece.ledger.anchor import read_head

    if text is None:
        return None
    head = read_head(text)
    if head is None:
        raise InputError(
            f"--head: {text!r} is not a head; give number:digest, as status printed it"
        )
    return head


@add_subcommand("Set or show the policy of scopes.", "apiece ledger policy people.db policy.toml")
@click.argument("url")
@click.argument("file", type=PATH, required=False)
@option("--json")
def policy(url: str, file: Path | None, as_json: bool) -> None:
    """Let the policy in FILE (TOML) hold from now on, or say which one holds.

    It declares who may spend how much of each account: tables [querier.NAME], [purpose.NAME] and
    [source.NAME] with quota, sure (of queriers) and renews; and unit and every.
    """
    from apiece.ledger.scopes import WHOLE

    ledger = _open_ledger(url)
    policy = ledger.policy if file is None else ledger.set_policy(read_text(file))
    documents: dict[str, Json] = {}
    rows = [["scope", "at most", "sure of", "renews"]]
    for kind, quotas in policy.quotas.items():
        documents[kind] = {}
        for name, quota in quotas.items():
            # Shares of an account.
            limit = quota.most / WHOLE
            sure = quota.sure / WHOLE
            documents[kind][name] = {
                "quota": round(limit, 6),
                "sure": round(sure, 6),
                "renews": quota.renews,
            }
            rows.append(
                [
                    f"{kind} {name}",
                    percent(round(limit, 5)),
                    percent(round(sure, 5)),
                    "yes" if quota.renews else "",
                ]
            )
    title = f"policy {policy.version}"
    if not policy.version:
        title = "no policy: accounts are all there is"
    lines = [title]
    if policy.quotas:
        lines += format_table(rows)
    lines.append(policy.protects)
    document = {
        "version": policy.version,
        "unit": policy.unit,
        "every": policy.every,
        "protects": policy.protects,
        "quotas": documents,
    }
    emit(as_json, document, lines)


@add_subcommand(
    "Charge an analysis made outside of apiece.",
    """apiece ledger charge people.db '{"laplace": {"scale": 20}}' --analysis May""",
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
    {"laplace": {"scale": 20}}, {"discrete_gaussian": …}, {"repeated": …}. Its noise is
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
    ledger = _open_ledger(url)
    if flags["scope"] is not None:
        ledger = ledger.within(read_scope(flags["scope"]))
    ids = None if data is None else _read_people(ledger, data, flags)
    costs, terms = _read_costs(ledger, source, flags["pure"], flags["bounded_range"])
    reserve_alike(ledger, analysis, costs, ids, terms=terms)
    status = ledger.status(analysis, terms)
    emit(as_json, {"analysis": analysis, "status": status}, [f"analysis {analysis}: {status}"])


def _read_people(ledger: Ledger, data: Path, flags: Flags) -> Ids:
    """Return the ids of a table's people, as the ledger writes them."""
    from apiece.budgets.units import read_persons
    from apiece.datasets.tables import read_table
    from apiece.ledger.codec import parse_ids

    texts = read_persons(read_table(data, make_dialect(flags)), flags["person"])
    # Each person once, in the order of the table.
    people = list(dict.fromkeys(texts.tolist()))
    ids, known = parse_ids(people, ledger.id_kind)
    if not known.all():
        strangers = [person for person, is_known in zip(people, known, strict=True) if not is_known]
        raise DataError(
            f"--data: {strangers[0]!r} has no account ({len(strangers)} such); enroll them"
        )
    return ids


def _read_costs(
    ledger: Ledger, source: str | None, pure: float | None, bounded_range: float | None
) -> tuple[Costs, Json]:
    """Return the costs of the analysis for every account, and the terms of its reservation."""
    from apiece.accounting.slack import gaussian_of_bounded_range, gaussian_of_pure
    from apiece.filters import Costs, costs_of
    from apiece.mechanisms import from_json
    from apiece.mechanisms.algebra import to_dict

    if [source, pure, bounded_range].count(None) != 2:
        raise InputError("SOURCE: give one of a mechanism's JSON, --pure and --bounded-range")
    # The cost of a Gaussian mechanism is μ².
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
    deltas = [float(terms["delta"].min()) for _, terms, _ in ledger.account_blocks()]
    if not deltas:
        raise DataError("ledger: it has no accounts to charge; enroll people first")
    # The smallest δ of any account, at which the cost holds for all.
    return costs_of([mechanism], min(deltas)), {"mechanism": to_dict(mechanism)}


@add_subcommand(
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
    released = _open_ledger(url).commit(analysis, value)
    emit(as_json, {"analysis": analysis, "result": released}, [json.dumps(released)])


@add_subcommand("How far the history goes.", "apiece ledger status sqlite:///people.db --json")
@url_argument
@option("--analysis", help="Say whether this analysis is reserved or committed.")
@option(
    "--left",
    "remainders",
    is_flag=True,
    help="Count the accounts by what they have left. PRIVATE.",
)
@option(
    "--noise-stddev",
    type=float,
    help="Release --left with noise of this size, under the name --analysis.",
)
@option("--json")
def status(
    url: str, analysis: str | None, remainders: bool, noise_stddev: float | None, as_json: bool
) -> None:
    """Say how far the history goes; nothing about anyone's spending, unless asked.

    --left says how many accounts have how much left: data about people. With --noise-stddev and
    --analysis these counts get noise, which everyone counted pays for, and may be shown.
    """
    ledger = _open_ledger(url)
    if noise_stddev is not None and (analysis is None or not remainders):
        raise InputError("--noise-stddev: needs --left, and --analysis as the release's name")
    # Before the head is read, which a release with noise moves on.
    counts = _count_remainders(ledger, analysis, noise_stddev) if remainders else None
    head = ledger.head()
    document: Json = {"people": ledger.people, "head": head._asdict()}
    lines = [f"{document['people']} people", f"head {head.number}:{head.digest}"]
    if counts is not None:
        document["left"] = counts
        lines += _format_remainders(counts)
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


def _format_remainders(counts: Json) -> list[str]:
    """Return the lines of a table of accounts by the share that they have left."""
    noise = counts["noise_stddev"]
    title = "PRIVATE, data about people" if noise is None else f"with noise of {noise:g} a step"
    rows = [["at least this share\nof the account is left", "for queries", "for trainings"]]
    for share, queries, trainings in zip(
        counts["shares"], counts["queries"], counts["trainings"], strict=True
    ):
        rows.append([percent(share), f"{queries:,}", f"{trainings:,}"])
    return [
        f"how many accounts, {title}:",
        *format_table(rows),
        "Gaussian queries use the budget alone; trainings use the slack too.",
    ]


def _count_remainders(ledger: Ledger, analysis: str | None, noise_stddev: float | None) -> Json:
    """Return how many accounts have which share left: as they are, or released with noise."""
    from apiece.ledger import standing
    from apiece.ledger.reports import SHARES

    if noise_stddev is not None:
        from apiece.queries.session import release_standing

        return release_standing(ledger, str(analysis), noise_stddev=noise_stddev)
    counts = {use: accounts.tolist() for use, accounts in standing(ledger).items()}
    return {"shares": list(SHARES), "noise_stddev": None, **counts}


@add_subcommand(
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
    from apiece.ledger import receipt as make_receipt

    ledger = _open_ledger(url)
    account = find_account(ledger, person)
    if head is not None:
        echo(json.dumps(ledger.prove(account, _read_document(head, "--head"))))
        return
    receipt = make_receipt(ledger, account)
    emit(as_json, receipt.to_dict(), format_receipt(receipt))


def _read_document(path: Path, label: str, key: str = "accounts", command: str = "head") -> Json:
    """Return the head in a file, or the document with another key that a command printed.

    Args:
        path: The file.
        label: What the user calls it, for errors.
        key: A key that the document has.
        command: The sub-command that prints it.
    """
    document = loads(read_text(path), label)
    if not isinstance(document, dict) or key not in document:
        raise DataError(f"{label} {path}: is not one; give what `apiece ledger {command}` printed")
    return document


@add_subcommand(
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
    earlier = None if since is None else _read_document(since, "--since")
    echo(json.dumps(_open_ledger(url).publish(earlier)))


@add_subcommand(
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
        _read_document(receipt, "RECEIPT", "account", "receipt --head"),
        _read_document(head, "HEAD"),
    )
    verdict = "does not hold" if problems else "ok"
    _print_verdict(as_json, {"ok": not problems}, problems, verdict)


def _print_verdict(as_json: bool, document: Json, problems: Sequence[str], verdict: str) -> None:
    """Print the problems and the verdict; exit with 1 where there are problems."""
    lines = [*(f"PROBLEM {problem}" for problem in problems), verdict]
    emit(as_json, document | {"problems": list(problems)}, lines)
    if problems:
        click.get_current_context().exit(1)


@add_subcommand("List every entry.", "apiece ledger history sqlite:///people.db")
@url_argument
@option("--json")
def history(url: str, as_json: bool) -> None:
    """List every entry: what was enrolled, reserved and committed, with digests."""
    documents = []
    lines = []
    for entry in _open_ledger(url).history():
        documents.append(
            {
                "number": entry.number,
                "kind": entry.kind,
                "at": entry.at,
                "analysis": entry.analysis,
                "digest": entry.digest,
            }
        )
        digest = entry.digest[:16]
        analysis = entry.analysis or ""
        lines.append(f"{entry.number:6d}  {entry.at}  {entry.kind:8s} {digest}  {analysis}")
    emit(as_json, documents, lines)


@add_subcommand(
    "Recompute every digest and balance.",
    "apiece ledger verify sqlite:///people.db --head 12:9f0c…",
)
@url_argument
@option("--head", help="number:digest that `status` printed, kept outside the database.")
@option("--json")
def verify(url: str, head: str | None, as_json: bool) -> None:
    """Recompute every digest and balance; exit 1 and name what does not add up."""
    verification = _open_ledger(url).verify(_parse_head(head))
    warn(verification.notes)
    document = {
        "ok": verification.ok,
        "entries": verification.entries,
        "people": verification.people,
        "notes": list(verification.notes),
        "head": verification.head._asdict(),
    }
    verdict = "ok"
    if not verification.ok:
        verdict = f"{len(verification.problems)} problems; restore a backup"
    line = f"{verification.entries} entries, {verification.people} people: {verdict}"
    _print_verdict(as_json, document, verification.problems, line)


@add_subcommand(
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
    rows = _open_ledger(url).export(out, table, analysis_id=analysis)
    document: Json = {"out": str(out), "table": table}
    line = str(out)
    # How many paid is data about people.
    if table != "paid":
        document["rows"] = rows
        line += f": {rows} rows"
    emit(as_json, document, line)
