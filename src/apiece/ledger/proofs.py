"""Proofs that anybody can check: Merkle trees of a ledger's entries and accounts (RFC 6962).

A head that is published binds the whole history and everyone's account. A receipt proves, against
it and without the ledger, which entries charged a person, and that these add up to their account.
Leaves of other accounts are blinded by a keyed nonce.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Final

import sqlalchemy as sa

from apiece._json import loads
from apiece._types import Json
from apiece.errors import DataError, InputError
from apiece.ledger import codec
from apiece.ledger.chain import Trail
from apiece.ledger.codec import BLOCK, keyed
from apiece.ledger.scopes import accounts_of
from apiece.ledger.store import LedgerStore, Reading
from apiece.ledger.verify import accounts_after

HEAD: Final = "apiece-head/1"
RECEIPT: Final = "apiece-receipt/1"


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(b"\1" + left + right).digest()


def levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """Return the nodes of a tree by level, leaves first; a node without a neighbour moves up."""
    result = [list(leaves)]
    while len(result[-1]) > 1:
        below = result[-1]
        pairs = zip(below[::2], below[1::2], strict=False)
        result.append([node_hash(*pair) for pair in pairs] + below[len(below) & ~1 :])
    return result


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """Return the Merkle tree hash of hashed leaves (RFC 6962, 2.1)."""
    return levels(leaves)[-1][0] if leaves else hashlib.sha256().digest()


def inclusion(tree: Sequence[Sequence[bytes]], index: int) -> list[bytes]:
    """Return the audit path of a leaf (RFC 6962, 2.1.1), by the tree's levels."""
    path = []
    for nodes in tree[:-1]:
        if index ^ 1 < len(nodes):
            path.append(nodes[index ^ 1])
        index >>= 1
    return path


def consistency(leaves: Sequence[bytes], first: int) -> list[bytes]:
    """Return the proof that the first leaves are a tree's beginning (RFC 6962, 2.1.2)."""

    def proof(start: int, end: int, first: int, known: bool) -> list[bytes]:
        size = end - start
        if first == size:
            return [] if known else [tree_root(leaves[start:end])]
        half = 1 << (size - 1).bit_length() - 1
        middle = start + half
        if first <= half:
            return [*proof(start, middle, first, known), tree_root(leaves[middle:end])]
        return [*proof(middle, end, first - half, False), tree_root(leaves[start:middle])]

    return proof(0, len(leaves), first, True) if 0 < first < len(leaves) else []


def included(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Return whether a path proves that a leaf is in a tree (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    at, last, result = index, size - 1, leaf
    for node in path:
        if last == 0:
            return False
        if at & 1 or at == last:
            result = node_hash(node, result)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            result = node_hash(result, node)
        at, last = at >> 1, last >> 1
    return last == 0 and result == root


def consistent(
    first: int, second: int, before: bytes, after: bytes, proof: Sequence[bytes]
) -> bool:
    """Return whether a proof shows that one tree begins another (RFC 9162, 2.1.4.2)."""
    if first == second:
        return not proof and before == after
    if not 0 < first < second or not proof:
        return False
    nodes = list(proof) if first & (first - 1) else [before, *proof]
    at, last = first - 1, second - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    old = new = nodes[0]
    for node in nodes[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            old, new = node_hash(node, old), node_hash(node, new)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            new = node_hash(new, node)
        at, last = at >> 1, last >> 1
    return last == 0 and old == before and new == after


def _accounts(trail: Trail, connection: sa.Connection, size: int) -> Iterator[bytes]:
    """Yield everyone's leaf after so many entries: nonce, id, terms, withdrawn, what was spent."""
    key = keyed(trail.salt, b"account")
    for ids, terms, spent, gone in accounts_after(trail, connection, size):
        whole = {k: pairs.tolist() for k, pairs in spent.items() if k[:1] in ("", "@")}
        rows = zip(ids.tolist(), terms.tolist(), gone.tolist(), strict=True)
        for at, (person, own, left) in enumerate(rows):
            name = str(person) if isinstance(person, int) else json.dumps(person)
            nonce = hashlib.blake2b(name.encode(), key=key, digest_size=32).hexdigest()
            paid = [f'"{k}":{pairs[at]}' for k, pairs in whole.items() if at < len(pairs)]
            numbers = f"{own[0]!r},{own[1]!r},{own[2]},{own[3]},{int(left)},{{{','.join(paid)}}}"
            yield f'["{nonce}",{name},{numbers}]'.encode()


def checked_head(head: Json) -> Json:
    """Return a published head. Raises `InputError` for what is none."""
    kinds = {"format": str, "size": int, "root": str, "people": int, "accounts": str}
    if any(type(head.get(name)) is not kind for name, kind in kinds.items()):
        raise InputError("head: not one that `apiece ledger head` wrote")
    return head


def published(store: LedgerStore, reading: Reading, size: int, since: Json | None) -> Json:
    """Return the head after so many entries, and a proof that it goes on from an earlier one."""
    entries = [leaf_hash(each) for each in store.trail.leaves(reading.connection)]
    if not 0 < size <= len(entries):
        raise InputError(f"head: of {size} entries, where the ledger has {len(entries)}")
    people = [leaf_hash(each) for each in _accounts(store.trail, reading.connection, size)]
    head: Json = {
        "format": HEAD,
        "size": size,
        "root": tree_root(entries[:size]).hex(),
        "people": len(people),
        "accounts": tree_root(people).hex(),
    }
    if since is not None:
        checked_head(since)
        if not 0 < since["size"] <= size or _bare(since) != published(
            store, reading, since["size"], None
        ):  # its accounts too are those after its entries: what is published vouches for them
            raise InputError("since: is no earlier head of this ledger")
        proof = _texts(consistency(entries[:size], since["size"]))
        head["since"] = {**_bare(since), "proof": proof}
    return head


def proved(store: LedgerStore, reading: Reading, person: int | str, head: Json) -> Json:
    """Return one person's receipt with its proofs against a published head."""
    trail, connection, size = store.trail, reading.connection, head["size"]
    texts = list(trail.leaves(connection))[:size]
    entries = levels([leaf_hash(each) for each in texts])
    people = list(_accounts(trail, connection, size))
    accounts = levels([leaf_hash(each) for each in people])
    if (entries[-1][0].hex(), accounts[-1][0].hex()) != (head["root"], head["accounts"]):
        raise InputError("head: is not this ledger's; publish one with `apiece ledger head`")
    place = int(store.directory(reading).numbers(codec.checked_ids([person]))[0])
    if place >= len(people):
        raise DataError(f"head: person {person!r} had no account then; take a later head")
    block, at = divmod(place, BLOCK)
    charges = []
    for body, _ in trail.bodies(connection):
        number = body["number"]
        if number < size and body["kind"] == "reserve":
            for _, data in trail.arrays(connection, number, [block]):
                mask, pairs = codec.unpack_charges(data)
                if at < mask.size and mask[at]:
                    charges.append(
                        {
                            "entry": number,
                            "units": pairs[int(mask[:at].sum())].tolist(),
                            "accounts": accounts_of(trail.policy, body.get("scope")),
                            "text": texts[number].decode(),
                            "proof": _texts(inclusion(entries, number)),
                        }
                    )
    account = {"place": place, "text": people[place].decode()}
    return {
        "format": RECEIPT,
        "person": person,
        "head": _bare(head),
        "account": {**account, "proof": _texts(inclusion(accounts, place))},
        "charges": charges,
    }


def _texts(proof: Sequence[bytes]) -> list[str]:
    return [node.hex() for node in proof]


def _bare(head: Json, but: str = "since") -> Json:
    """Return a head without its proof."""
    return {name: value for name, value in head.items() if name != but}


def _since(head: Json, before: Json) -> list[str]:
    """Return why a head does not go on from an earlier one."""
    if _bare(head) == before:
        return []
    own = head.get("since", {})
    if _bare(own, "proof") != before:
        return ["head: neither the receipt's nor one that goes on from it"]
    # Entries fix the accounts after them: of as many entries there is one head.
    if not own["size"] < head["size"] or not own["people"] <= head["people"]:
        return ["head: as many entries as the receipt's or fewer, with another content"]
    old, new = bytes.fromhex(own["root"]), bytes.fromhex(head["root"])
    proof = [bytes.fromhex(each) for each in own["proof"]]
    if not consistent(own["size"], head["size"], old, new, proof):
        return ["head: its history is not the receipt's, gone on with"]
    return []


def check_receipt(receipt: Json, head: Json) -> list[str]:
    """Return what is wrong with a receipt against a published head; nothing where all holds.

    Args:
        receipt: As `Ledger.prove` made it.
        head: As `Ledger.publish` made it: the receipt's, or a later one made since the receipt's.

    Guarantee:
        Where nothing is returned, the entries that are listed are in the history that the head
        binds, and what they charged adds up to the person's account in it. (That each took just
        so much from them is the steward's word; the sum is bound.)

    References:
        RFC 6962, section 2.1; RFC 9162, section 2.1.

    Example:
        >>> from apiece.ledger import check_receipt
        >>> check_receipt({}, {})
        ['receipt: cannot be read (KeyError)']
    """
    try:
        return list(dict.fromkeys(_faults(receipt, head)))
    except (
        KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        return [f"receipt: cannot be read ({type(error).__name__})"]


def _faults(receipt: Json, head: Json) -> Iterator[str]:
    own, account = receipt["head"], receipt["account"]
    if (receipt["format"], own["format"], head["format"]) != (RECEIPT, HEAD, HEAD):
        yield "receipt: not of a format that is known here"
    yield from _since(head, own)

    def holds(text: str, index: int, size: int, proof: list[str], root: str) -> bool:
        path = [bytes.fromhex(each) for each in proof]
        return included(leaf_hash(text.encode()), index, size, path, bytes.fromhex(root))

    if not holds(
        account["text"], account["place"], own["people"], account["proof"], own["accounts"]
    ):
        yield "account: not in the head"
    _, person, _, _, limit, slack, _, spent = loads(account["text"], "account")
    if person != receipt["person"]:
        yield "account: of another person"
    sums = {key: [0, 0] for key in spent}
    numbers = [charge["entry"] for charge in receipt["charges"]]
    if numbers != sorted(set(numbers)):
        yield "charges: an entry is listed twice"
    for charge in receipt["charges"]:
        body = loads(charge["text"].rsplit("\n", 1)[0], "entry")
        if body["number"] != charge["entry"] or body["kind"] != "reserve":
            yield f"entry {charge['entry']}: is another, or no charge"
        if not holds(charge["text"], charge["entry"], own["size"], charge["proof"], own["root"]):
            yield f"entry {charge['entry']}: not in the head"
        if min(charge["units"]) < 0:
            yield f"entry {charge['entry']}: less than nothing was charged"
        for key in charge["accounts"]:
            sums[key] = [a + b for a, b in zip(sums[key], charge["units"], strict=True)]
    if sums != spent:
        yield "charges: do not add up to the account"
    if any(a > b for each in spent.values() for a, b in zip(each, (limit, slack), strict=True)):
        yield "account: over its budget"
