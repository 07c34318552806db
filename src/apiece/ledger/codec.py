"""Blocks of bytes that hold people, budgets and charges, and the digests of these; whole units.

Person number k (in the order of enrolment) is entry k % BLOCK of block k // BLOCK. A charge of
10⁶ people is a few hundred rows, which is why both databases write it in under a second.

Digests are keyed with a random salt that stays in the ledger, so a published one tells nothing
about the people behind it.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identifiers import find_flawed
from apiece._types import Floats, Ids, Integers, Mask
from apiece.accounting.concentrated import concentrated_epsilon
from apiece.errors import BudgetError, DataError, StateError
from apiece.filters.convert import SHARE, distinct, gaussian_budget

# People in a block, the least that is read and written: two columns of it in 64 bits are 64 KiB.
BLOCK: Final = 4096
# Bytes of a digest.
DIGEST: Final = 32
# A whole number in decimal digits, of which there is one spelling for each number.
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
# Errors that reading damaged content can raise.
DAMAGE: Final = (
    ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError,
    struct.error, zlib.error,
)  # fmt: skip
# The end of messages about damage.
REMEDY: Final = "nothing was charged; run `apiece ledger verify` and restore a backup"
# One person's budget (ε, δ), and their account in units of μ² and of slack. A slack of −1 marks a
# promise of ρ: the account has no slack, its limit is 2ρ, and ε is what that stands for at δ.
TERMS: Final = np.dtype([("epsilon", "<f8"), ("delta", "<f8"), ("limit", "<i8"), ("slack", "<i8")])
Terms = npt.NDArray[Any]


def normalize_ids(ids: Any, *, least: int = 1) -> Ids:
    """Return person ids as an array of 64-bit integers or of strings; refuse all else."""
    array = _check.ids("ids", ids)
    if array.size < least:
        raise DataError("ids: none; give a flat list of ids")
    # An empty list has no kind, and is taken for whole numbers.
    return array if array.size else np.zeros(0, dtype=np.int64)


def require_canonical_ids(ids: Ids) -> None:
    """Raise `DataError` for ids of new persons that could be written in another way.

    Ids that a ledger has had before this rule are read as they are. The message shows no id.
    """
    flawed = find_flawed(ids)
    if flawed is not None:
        position, count, flaw = flawed
        raise DataError(
            f"ids[{position}]: {flaw} ({count} of {ids.size} new ids are not written in the one "
            "way); no account is opened for a second spelling: mend them here and in the tables"
        )


def parse_id(text: str, kind: str | None) -> int | str | None:
    """Return the one id that a text stands for; None for nobody's, as "07" among numbers."""
    if kind != "integer":
        return text
    if not _WHOLE.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def parse_ids(texts: Iterable[object], kind: str | None) -> tuple[Ids, Mask]:
    """Return the ids that texts stand for, in a ledger of this kind, and which stand for one."""
    ids = [parse_id(str(text), kind) for text in texts]
    known = np.array([person is not None for person in ids], dtype=bool)
    return normalize_ids([person for person in ids if person is not None], least=0), known


def find_kind(ids: Ids) -> str:
    """Return the kind of ids: "integer" or "text"."""
    return "integer" if ids.dtype.kind == "i" else "text"


def pack_ids(ids: Ids) -> bytes:
    """Return ids as bytes; `unpack_ids` is the inverse."""
    if find_kind(ids) == "integer":
        return b"i" + ids.astype("<i8").tobytes()
    texts = [str(i).encode() for i in ids]
    # "t", the length of each text in bytes, and all texts one after the other.
    lengths = struct.pack(f"<{len(texts)}I", *map(len, texts))
    return b"t" + lengths + b"".join(texts)


def unpack_ids(data: bytes, size: int) -> Ids:
    """Return the `size` ids in `data`; raises `StateError` where it holds something else."""
    tag = data[:1]
    body = data[1:]
    if tag == b"i" and len(body) == 8 * size:
        return np.frombuffer(body, "<i8").astype(np.int64)
    if tag == b"t" and len(body) >= 4 * size:
        lengths = np.frombuffer(body[: 4 * size], "<u4").astype(np.int64)
        text = body[4 * size :]
        # The lengths must use up the text to its last byte: who enrolled is not to depend on what
        # is behind it.
        ends = np.cumsum(lengths)
        if size == 0 or ends[-1] == len(text):
            starts = np.concatenate([[0], ends[:-1]])
            bounds = zip(starts, ends, strict=True)
            return np.array([text[start:end].decode() for start, end in bounds], dtype=str)
    raise StateError("ledger: a block of ids is damaged; run `apiece ledger verify`")


def pack_enrolled(ids: Ids, terms: Terms) -> bytes:
    """Return the record of newly enrolled people of one block."""
    packed = pack_ids(ids)
    sizes = struct.pack("<II", ids.size, len(packed))
    return zlib.compress(sizes + packed + terms.tobytes(), 1)


def unpack_enrolled(data: bytes) -> tuple[Ids, Terms]:
    """Invert `pack_enrolled`."""
    raw = zlib.decompress(data)
    size, length = struct.unpack_from("<II", raw)
    ids = unpack_ids(raw[8 : 8 + length], size)
    return ids, np.frombuffer(raw[8 + length :], TERMS, count=size)


def pack_mask(mask: Mask, values: bytes = b"") -> bytes:
    """Return a mask of a block's people, and bytes that belong to those in it, compressed."""
    head = struct.pack("<I", mask.size) + np.packbits(mask).tobytes()
    return zlib.compress(head + values, 1)


def unpack_mask(data: bytes) -> tuple[Mask, bytes]:
    """Invert `pack_mask`."""
    raw = zlib.decompress(data)
    (size,) = struct.unpack_from("<I", raw)
    stop = 4 + (size + 7) // 8
    # A damaged size could ask for any amount of memory.
    if not (size <= BLOCK and stop <= len(raw)):
        raise ValueError(f"a mask of {size} people; a block has at most {BLOCK}")
    bits = np.frombuffer(raw[4:stop], np.uint8)
    mask = np.unpackbits(bits, count=size).astype(bool)
    return mask, raw[stop:]


def read_limits(terms: Terms) -> Integers:
    """Return the limits of accounts in units, (people, 2): of μ² and slack."""
    return np.asarray(np.array([terms["limit"], np.maximum(terms["slack"], 0)]).T)


def find_concentrated(terms: Terms) -> Mask:
    """Return which accounts were promised as ρ."""
    return np.asarray(terms["slack"] < 0)


def make_zero_pairs(people: int) -> Integers:
    """Return the spending of new accounts, (people, 2): each column in one piece."""
    # Losses lie together, and slacks: `pack_pairs` writes them without a copy.
    return np.zeros((2, people), dtype=np.int64).T


def pad_pairs(spent: Integers | None, people: int) -> Integers:
    """Return a block's spending, (people, 2), in which people who came later spent nothing."""
    if spent is not None and len(spent) == people:
        return spent
    result = make_zero_pairs(people)
    if spent is not None:
        result[: len(spent)] = spent
    return result


def pack_pairs(pairs: Integers) -> bytes:
    """Return (people, 2) units of μ² and slack as bytes; slacks are left out where all are 0."""
    columns = np.ascontiguousarray(pairs.T, dtype="<i8")
    return (columns if columns[1].any() else columns[0]).tobytes()


def unpack_pairs(data: bytes, size: int) -> Integers:
    """Invert `pack_pairs`, for so many people; raises `ValueError` for bytes of another number."""
    if len(data) not in (8 * size, 16 * size):
        raise ValueError(f"{len(data)} bytes of units for {size} people")
    pairs = np.zeros((2, size), dtype=np.int64)
    # Where slacks were left out the second column stays 0.
    pairs.reshape(-1)[: len(data) // 8] = np.frombuffer(data, "<i8")
    return np.asarray(pairs.T)


def pack_charges(mask: Mask, pairs: Integers) -> bytes:
    """Return which people of a block were charged, and their charges, (charged, 2) units."""
    return pack_mask(mask, pack_pairs(pairs))


def unpack_charges(data: bytes) -> tuple[Mask, Integers]:
    """Invert `pack_charges`."""
    mask, packed = unpack_mask(data)
    return mask, unpack_pairs(packed, int(mask.sum()))


def mark_members(places: Integers, members: Integers) -> Mask:
    """Return which places are among `members`, which are sorted."""
    if not members.size:
        return np.zeros(places.shape, dtype=bool)
    positions = np.searchsorted(members, places)
    # −1 is no place: it stands for the end, where a place above all members is looked for.
    return np.asarray(np.append(members, -1)[positions] == places)


def find_places(block: int, mask: Mask) -> Integers:
    """Return the places of those of a block who are meant."""
    return np.asarray(block * BLOCK + np.flatnonzero(mask))


def group_by_block(places: Integers) -> list[tuple[int, npt.NDArray[np.intp]]]:
    """Return, for each block touched, its number and the positions in `places` that touch it."""
    if not places.size:
        return []
    blocks = places // BLOCK
    # Places of everybody are in order already, and need no sorting.
    if places.size > 1 and not (np.diff(blocks) >= 0).all():
        order = np.argsort(blocks, kind="stable")
    else:
        order = np.arange(places.size)
    numbers, starts = np.unique(blocks[order], return_index=True)
    parts = np.split(order, starts[1:])
    return [(int(number), part) for number, part in zip(numbers, parts, strict=True)]


def begin_digest(salt: bytes, *parts: bytes) -> hashlib.blake2b:
    """Begin a keyed hash with parts, each preceded by its length."""
    state = hashlib.blake2b(key=salt, digest_size=DIGEST)
    # Without the lengths ("ab", "c") and ("a", "bc") would be one content.
    for part in parts:
        state.update(struct.pack("<Q", len(part)))
        state.update(part)
    return state


def compute_digest(salt: bytes, *parts: bytes) -> bytes:
    """Return the keyed hash of parts, each preceded by its length."""
    return begin_digest(salt, *parts).digest()


def combine_digests(salt: bytes, digests: Iterable[tuple[int, bytes]]) -> bytes:
    """Return one digest for those of many blocks, in their order."""
    packed = b"".join(struct.pack("<q", block) + digest for block, digest in digests)
    return compute_digest(salt, packed)


def digest_block(salt: bytes, table: str, block: int, *content: bytes) -> bytes:
    """Return the digest of one row of the people or balances."""
    return compute_digest(salt, table.encode(), struct.pack("<q", block), *content)


def digest_entry(salt: bytes, previous: bytes, body: str, arrays: bytes) -> bytes:
    """Return an entry's digest: of the entry before it, its body, and its arrays' digest."""
    return compute_digest(salt, previous, body.encode(), arrays)


def digest_payloads(salt: bytes, payloads: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the digest of an entry's packed arrays."""
    return combine_digests(salt, ((block, compute_digest(salt, data)) for block, data in payloads))


# The unit of μ²: charges are rounded up to whole ones, and budgets down.
UNIT: Final = 2.0**-50
# The unit of slack: a δ of 1e-12 is a thousand million of them. An account has at most `CAP`/2, a
# slack of 2^−10.
SLACK_UNIT: Final = 2.0**-70
# The largest charge in units: two of them add up within 64 bits.
CAP: Final = 2**61
# The distance of 1 and the next double.
ULP: Final = 2.0**-52


def compute_limits(epsilon: Floats, delta: Floats, share: Floats | float = SHARE) -> Integers:
    """Return accounts (B, S) in units, (people, 2): S a share of δ, B made from the rest."""
    # Budgets are few and people many: each distinct triple is converted once.
    (epsilons, deltas, shares), kinds = distinct(epsilon, delta, share)
    slack = np.minimum(np.floor(deltas * shares / SLACK_UNIT), CAP // 2)
    budget = gaussian_budget(epsilons, deltas, slack * SLACK_UNIT)
    # Four ulps down: the product's own rounding never makes a budget larger than it is.
    units = np.floor(budget * (1 - 4 * ULP) / UNIT)
    good = (units >= 1) & (units < CAP)
    if not good.all():
        person = int(np.flatnonzero(~good[kinds])[0])
        kind = kinds[person]
        remedy = "a larger epsilon" if units[kind] < 1 else "a smaller epsilon"
        raise BudgetError(
            f"epsilon[{person}] = {float(epsilons[kind])!r}, delta = {float(deltas[kind])!r}: its "
            f"budget, {float(budget[kind]):g}, is outside [{UNIT:g}, {CAP * UNIT:g}); give {remedy}"
        )
    limits = np.array([units, slack]).astype(np.int64)
    return np.asarray(limits[:, kinds].T)


def make_terms(ids: Ids, epsilon: Any, delta: Any, slack: Any = None) -> Terms:
    """Return each person's ε, δ and account; raises `BudgetError` for what cannot be a budget."""
    epsilons = _check.positive_array("epsilon", epsilon, error=BudgetError)
    deltas = _check.positive_array("delta", delta, below=1.0, error=BudgetError)
    shares = _check.nonnegative_array("slack", SHARE if slack is None else slack)
    if not (shares < 1).all():
        raise BudgetError(f"slack = {slack!r}: must be in [0, 1), a share of delta; try {SHARE}")
    for label, array in (("epsilon", epsilons), ("delta", deltas), ("slack", shares)):
        if array.ndim and array.shape != ids.shape:
            raise BudgetError(f"{label}: {array.size} entries for {ids.size} ids")
    limits = compute_limits(epsilons, deltas, shares)
    result = np.zeros(ids.size, dtype=TERMS)
    result["epsilon"] = epsilons
    result["delta"] = deltas
    result["limit"], result["slack"] = limits.T
    return result


def make_concentrated_terms(ids: Ids, rho: Any, delta: Any) -> Terms:
    """Return accounts of people who were promised ρ; raises `BudgetError` for what is no budget.

    All that an account pays adds up to 2ρ at most: of Gaussians μ², of the others twice their ρ. So
    Rényi divergences stay below ρ·α, and nothing with a slack, whose ρ is infinite, is paid.
    """
    rhos = _check.positive_array("rho", rho, error=BudgetError)
    deltas = _check.positive_array("delta", delta, below=1.0, error=BudgetError)
    for label, array in (("rho", rhos), ("delta", deltas)):
        if array.ndim and array.shape != ids.shape:
            raise BudgetError(f"{label}: {array.size} entries for {ids.size} ids")
    (kinds, deltas_of_kinds), kind = distinct(rhos, deltas)
    # A ρ is half of a μ², and rounded down as one.
    units = np.floor(2 * kinds * (1 - 4 * ULP) / UNIT)
    good = (units >= 1) & (units < CAP)
    if not good.all():
        rho = float(kinds[~good][0])
        raise BudgetError(
            f"rho = {rho:g}: is outside [{UNIT:g}, {CAP * UNIT / 2:g}); give another one"
        )
    result = np.zeros(ids.size, dtype=TERMS)
    result["epsilon"] = concentrated_epsilon(kinds, deltas_of_kinds)[kind]
    result["delta"] = deltas
    result["limit"] = units.astype(np.int64)[kind]
    result["slack"] = -1
    return result


def compute_losses(norms: Any, noise_stddev: Any) -> Floats:
    """Return the μ² of a Gaussian sum, s²/S²; not yet rounded."""
    stddev = _check.positive("noise_stddev", noise_stddev)
    bounds = _check.nonnegative_array("norms", norms)
    with np.errstate(over="ignore", under="ignore"):
        # The square of the smallest norms is 0; they are not free for that.
        ratio = bounds / stddev
        return np.asarray(np.where(bounds > 0, np.maximum(ratio * ratio, UNIT / 4), 0.0))


def to_units(amount: Floats, unit: float = UNIT) -> Integers:
    """Return amounts in units, rounded up; one past every budget becomes the cap."""
    with np.errstate(over="ignore"):
        # Sixteen ulps are more than the few operations that make a cost are off by, so that the
        # product is not below the exact cost.
        units = np.ceil(amount * (1 + 16 * ULP) / unit)
    return np.minimum(units, CAP).astype(np.int64)
