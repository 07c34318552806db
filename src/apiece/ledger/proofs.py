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
from apiece.ledger.codec import BLOCK, compute_digest
from apiece.ledger.entries import ReserveEntry
from apiece.ledger.scopes import is_account, list_accounts
from apiece.ledger.store import LedgerStore, Reading
from apiece.ledger.verify import read_accounts_after

# Formats of a published head and of a receipt.
HEAD: Final = "apiece-head/1"
RECEIPT: Final = "apiece-receipt/1"


def hash_leaf(data: bytes) -> bytes:
    """Return the hash of a leaf."""
    # Leaves and inner nodes begin with different bytes (RFC 6962): else a node could be shown as a
    # leaf.
    return hashlib.sha256(b"\0" + data).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(b"\1" + left + right).digest()


def build_levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """Return the nodes of a tree by level, leaves first; a node without a neighbour moves up."""
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = zip(below[::2], below[1::2], strict=False)
        parents = [hash_node(left, right) for left, right in pairs]
        unpaired = below[len(below) & ~1 :]
        levels.append(parents + unpaired)
    return levels


def compute_root(leaves: Sequence[bytes]) -> bytes:
    """Return the Merkle tree hash of hashed leaves (RFC 6962, 2.1)."""
    return _find_root(build_levels(leaves))


def _find_root(levels: Sequence[Sequence[bytes]]) -> bytes:
    # A tree without leaves has the hash of nothing.
    return levels[-1][0] if levels[-1] else hashlib.sha256().digest()


def prove_inclusion(levels: Sequence[Sequence[bytes]], index: int) -> list[bytes]:
    """Return the audit path of a leaf (RFC 6962, 2.1.1), by the tree's levels."""
    path = []
    for nodes in levels[:-1]:
        # A node without a neighbour moves up unhashed, and needs nothing in the path.
        sibling = index ^ 1
        if sibling < len(nodes):
            path.append(nodes[sibling])
        index >>= 1
    return path


def prove_consistency(leaves: Sequence[bytes], size: int) -> list[bytes]:
    """Return the proof that the first `size` leaves are a tree's beginning (RFC 6962, 2.1.2)."""

    def prove(start: int, end: int, first: int, known: bool) -> list[bytes]:
        """Return SUBPROOF(first, leaves[start:end], known) of the RFC."""
        count = end - start
        # The proof holds the fewest nodes from which both roots follow. `known` says that the
        # subtree is the whole of the first tree, whose root the verifier has.
        if first == count:
            return [] if known else [compute_root(leaves[start:end])]
        # The largest power of two below the number of leaves.
        half = 1 << (count - 1).bit_length() - 1
        middle = start + half
        if first <= half:
            return [*prove(start, middle, first, known), compute_root(leaves[middle:end])]
        return [*prove(middle, end, first - half, False), compute_root(leaves[start:middle])]

    return prove(0, len(leaves), size, True) if 0 < size < len(leaves) else []


def verify_inclusion(
    leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes
) -> bool:
    """Return whether a path proves that a leaf is in a tree (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    # The leaf's node on the way up, and the last node of its level: fn and sn of the RFC.
    node_index = index
    last_index = size - 1
    result = leaf
    for node in path:
        if last_index == 0:
            return False
        if node_index & 1 or node_index == last_index:
            result = hash_node(node, result)
            # A node without a neighbour moves up as it is.
            while not node_index & 1 and node_index:
                node_index >>= 1
                last_index >>= 1
        else:
            result = hash_node(result, node)
        node_index >>= 1
        last_index >>= 1
    return last_index == 0 and result == root


def verify_consistency(
    first_size: int,
    second_size: int,
    first_root: bytes,
    second_root: bytes,
    proof: Sequence[bytes],
) -> bool:
    """Return whether a proof shows that one tree begins another (RFC 9162, 2.1.4.2)."""
    if first_size == second_size:
        return not proof and first_root == second_root
    if not 0 < first_size < second_size or not proof:
        return False
    # Where the first tree is a full one, its root begins the path, and the proof leaves it out.
    is_full = not first_size & (first_size - 1)
    nodes = [first_root, *proof] if is_full else list(proof)
    # fn and sn of the RFC.
    node_index = first_size - 1
    last_index = second_size - 1
    while node_index & 1:
        node_index >>= 1
        last_index >>= 1
    first_result = nodes[0]
    second_result = nodes[0]
    for node in nodes[1:]:
        if last_index == 0:
            return False
        if node_index & 1 or node_index == last_index:
            first_result = hash_node(node, first_result)
            second_result = hash_node(node, second_result)
            while not node_index & 1 and node_index:
                node_index >>= 1
                last_index >>= 1
        else:
            second_result = hash_node(second_result, node)
        node_index >>= 1
        last_index >>= 1
    return last_index == 0 and first_result == first_root and second_result == second_root


def _list_account_leaves(trail: Trail, connection: sa.Connection, size: int) -> Iterator[bytes]:
    """Yield everyone's leaf after so many entries: nonce, id, terms, withdrawn, what was spent."""
    # The nonce is a function of the id and of a secret: each head has the same one of a person, and
    # nobody can try ids on a leaf.
    key = compute_digest(trail.salt, b"account")
    for ids, terms, spent, withdrawn in read_accounts_after(trail, connection, size):
        # The text of a leaf is hashed, and so written by hand in one spelling: floats as Python
        # writes them, whole numbers for units, accounts in their order.
        balances = {scope: pairs.tolist() for scope, pairs in spent.items() if is_account(scope)}
        people = zip(ids.tolist(), terms.tolist(), withdrawn.tolist(), strict=True)
        for row, (person, (epsilon, delta, limit, slack), has_withdrawn) in enumerate(people):
            name = str(person) if isinstance(person, int) else json.dumps(person)
            nonce = hashlib.blake2b(name.encode(), key=key, digest_size=32).hexdigest()
            # Who came after a period's last charge has nothing there.
            paid = ",".join(
                f'"{scope}":{pairs[row]}' for scope, pairs in balances.items() if row < len(pairs)
            )
            account = f"{epsilon!r},{delta!r},{limit},{slack},{int(has_withdrawn)},{{{paid}}}"
            yield f'["{nonce}",{name},{account}]'.encode()


def check_head(head: Json) -> Json:
    """Return a published head. Raises `InputError` for what is none."""
    types = {"format": str, "size": int, "root": str, "people": int, "accounts": str}
    if any(type(head.get(name)) is not expected for name, expected in types.items()):
        raise InputError("head: not one that `apiece ledger head` wrote")
    return head


def make_head(store: LedgerStore, reading: Reading, size: int, since: Json | None) -> Json:
    """Return the head after so many entries, and a proof that it goes on from an earlier one."""
    connection = reading.connection
    # Two trees: all entries, and everyone's account as it stood after so many of them.
    entries = [hash_leaf(leaf) for leaf in store.trail.list_leaves(connection)]
    if not 0 < size <= len(entries):
        raise InputError(f"head: of {size} entries, where the ledger has {len(entries)}")
    people = [hash_leaf(leaf) for leaf in _list_account_leaves(store.trail, connection, size)]
    head: Json = {
        "format": HEAD,
        "size": size,
        "root": compute_root(entries[:size]).hex(),
        "people": len(people),
        "accounts": compute_root(people).hex(),
    }
    if since is None:
        return head
    check_head(since)
    earlier = _strip_proof(since)
    # Its accounts too are those after its entries: what is published vouches for them.
    if not 0 < since["size"] <= size or earlier != make_head(store, reading, since["size"], None):
        raise InputError("since: is no earlier head of this ledger")
    proof = prove_consistency(entries[:size], since["size"])
    head["since"] = {**earlier, "proof": _to_texts(proof)}
    return head


def prove_account(store: LedgerStore, reading: Reading, person: int | str, head: Json) -> Json:
    """Return one person's receipt with its proofs against a published head."""
    trail = store.trail
    connection = reading.connection
    size = head["size"]
    texts = list(trail.list_leaves(connection))
    foreign = InputError("head: is not this ledger's; publish one with `apiece ledger head`")
    # The size is the caller's word.
    if not 0 < size <= len(texts):
        raise foreign
    people = list(_list_account_leaves(trail, connection, size))
    entry_levels = build_levels([hash_leaf(text) for text in texts[:size]])
    account_levels = build_levels([hash_leaf(leaf) for leaf in people])
    roots = (_find_root(entry_levels).hex(), _find_root(account_levels).hex())
    # A head that is not this ledger's would prove nothing.
    if roots != (head["root"], head["accounts"]):
        raise foreign
    place = int(store.directory(reading).require_places(codec.normalize_ids([person]))[0])
    if place >= len(people):
        raise DataError(f"head: person {person!r} had no account then; take a later head")
    charges = []
    for number, entry, units in _list_charges(trail, connection, place, size):
        charge = {
            "entry": number,
            "units": units,
            "accounts": list_accounts(trail.policy, entry.subject.scope),
            "text": texts[number].decode(),
            "proof": _to_texts(prove_inclusion(entry_levels, number)),
        }
        charges.append(charge)
    account = {
        "place": place,
        "text": people[place].decode(),
        "proof": _to_texts(prove_inclusion(account_levels, place)),
    }
    return {
        "format": RECEIPT,
        "person": person,
        "head": _strip_proof(head),
        "account": account,
        "charges": charges,
    }


def _list_charges(
    trail: Trail, connection: sa.Connection, place: int, size: int
) -> Iterator[tuple[int, ReserveEntry, list[int]]]:
    """Yield the entries before number `size` that charged a person: number, entry and units."""
    block, row = divmod(place, BLOCK)
    for stored, _ in trail.read_entries(connection):
        entry = stored.content
        if stored.number >= size or not isinstance(entry, ReserveEntry):
            continue
        for _, data in trail.read_arrays(connection, stored.number, [block]):
            mask, pairs = codec.unpack_charges(data)
            if row < mask.size and mask[row]:
                yield stored.number, entry, pairs[int(mask[:row].sum())].tolist()


def _to_texts(proof: Sequence[bytes]) -> list[str]:
    return [node.hex() for node in proof]


def _from_texts(proof: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(node) for node in proof]


def _strip_proof(head: Json, name: str = "since") -> Json:
    """Return a head without its proof."""
    return {key: value for key, value in head.items() if key != name}


def _check_continuation(head: Json, earlier: Json) -> list[str]:
    """Return why a head does not go on from an earlier one."""
    if _strip_proof(head) == earlier:
        return []
    since = head.get("since", {})
    if _strip_proof(since, "proof") != earlier:
        return ["head: neither the receipt's nor one that goes on from it"]
    # Entries fix the accounts after them: of as many entries there is one head.
    if not since["size"] < head["size"] or not since["people"] <= head["people"]:
        return ["head: as many entries as the receipt's or fewer, with another content"]
    old_root = bytes.fromhex(since["root"])
    new_root = bytes.fromhex(head["root"])
    proof = _from_texts(since["proof"])
    if not verify_consistency(since["size"], head["size"], old_root, new_root, proof):
        return ["head: its history is not the receipt's, gone on with"]
    return []


def check_receipt(receipt: Json, head: Json) -> list[str]:
    """Return the faults of a receipt against a published head; none where all holds.

    Args:
        receipt: A receipt from `Ledger.prove`.
        head: A head from `Ledger.publish`: the receipt's, or a later one made since the receipt's.

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
        return list(dict.fromkeys(_find_faults(receipt, head)))
    # A receipt may come from anybody: whatever is wrong with it is a fault of it, and no exception
    # here.
    except (
        KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        return [f"receipt: cannot be read ({type(error).__name__})"]


def _is_included(text: str, index: int, size: int, proof: list[str], root: str) -> bool:
    leaf = hash_leaf(text.encode())
    return verify_inclusion(leaf, index, size, _from_texts(proof), bytes.fromhex(root))


def _find_faults(receipt: Json, head: Json) -> Iterator[str]:
    own_head = receipt["head"]
    account = receipt["account"]
    formats = (receipt["format"], own_head["format"], head["format"])
    if formats != (RECEIPT, HEAD, HEAD):
        yield "receipt: not of a format that is known here"
    yield from _check_continuation(head, own_head)
    if not _is_included(
        account["text"],
        account["place"],
        own_head["people"],
        account["proof"],
        own_head["accounts"],
    ):
        yield "account: not in the head"
    # The fields of a leaf as `_list_account_leaves` writes them. All that follows is read from
    # texts that the trees bind, but for how much each entry took.
    _, person, _, _, limit, slack, _, spent = loads(account["text"], "account")
    if person != receipt["person"]:
        yield "account: of another person"
    # What the listed charges took from each account, to be compared with what the leaf says was
    # taken.
    sums = {key: [0, 0] for key in spent}
    numbers = [charge["entry"] for charge in receipt["charges"]]
    if numbers != sorted(set(numbers)):
        yield "charges: an entry is listed twice"
    for charge in receipt["charges"]:
        yield from _find_faults_of_charge(charge, own_head)
        for key in charge["accounts"]:
            pairs = zip(sums[key], charge["units"], strict=True)
            sums[key] = [total + units for total, units in pairs]
    if sums != spent:
        yield "charges: do not add up to the account"
    # An account of a ρ is marked by a slack of −1, and has none.
    bounds = (limit, max(slack, 0))
    for pair in spent.values():
        if any(units > bound for units, bound in zip(pair, bounds, strict=True)):
            yield "account: over its budget"


def _find_faults_of_charge(charge: Json, head: Json) -> Iterator[str]:
    number = charge["entry"]
    # The leaf of an entry is its body, a line's end and the digest of its arrays.
    body = loads(charge["text"].rsplit("\n", 1)[0], "entry")
    if body["number"] != number or body["kind"] != ReserveEntry.kind:
        yield f"entry {number}: is another, or no charge"
    if not _is_included(charge["text"], number, head["size"], charge["proof"], head["root"]):
        yield f"entry {number}: not in the head"
    if min(charge["units"]) < 0:
        yield f"entry {number}: less than nothing was charged"
