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
from apiece.errors import BudgetError, DataError, StateError
from apiece.filters.convert import SHARE, distinct, gaussian_budget

BLOCK: Final = 4096
DIGEST: Final = 32  # bytes
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")  # one way to write each number
# What reading damaged content can raise.
DAMAGE: Final = (
    ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError,
    struct.error, zlib.error,
)  # fmt: skip
TERMS: Final = np.dtype([("epsilon", "<f8"), ("delta", "<f8"), ("limit", "<i8"), ("slack", "<i8")])
Terms = npt.NDArray[Any]


def checked_ids(ids: Any, *, least: int = 1) -> Ids:
    """Return person ids as an array of 64-bit integers or of strings; refuse all else."""
    array = _check.ids("ids", ids)
    if array.size < least:
        raise DataError("ids: none; give a flat list of ids")
    return array if array.size else np.zeros(0, dtype=np.int64)


def require_canonical_ids(ids: Ids) -> None:
    """Raise `DataError` for ids of new persons that could be written in another way.

    Ids that a ledger has had before this rule are read as they are. The message shows no id.
    """
    flawed = find_flawed(ids)
    if flawed is not None:
        place, many, flaw = flawed
        raise DataError(
            f"ids[{place}]: {flaw} ({many} of {ids.size} new ids are not written in the one way); "
            "no account is opened for a second spelling: mend them here and in the tables"
        )


def read_id(text: str, kind: str | None) -> int | str | None:
    """Return the one id that a text stands for; None for nobody's, as "07" among numbers."""
    if kind != "integer":
        return text
    whole = int(text) if _WHOLE.fullmatch(text) else 2**63
    return whole if -(2**63) <= whole < 2**63 else None


def read_ids(texts: Iterable[object], kind: str | None) -> tuple[Ids, Mask]:
    """Return the ids that texts stand for, in a ledger of this kind, and which stand for one."""
    each = [read_id(str(text), kind) for text in texts]
    known = np.array([one is not None for one in each], dtype=bool)
    return checked_ids([one for one in each if one is not None], least=0), known


def kind(ids: Ids) -> str:
    """Return "integer" or "text"."""
    return "integer" if ids.dtype.kind == "i" else "text"


def pack_ids(ids: Ids) -> bytes:
    """Return ids as bytes; `unpack_ids` is the inverse."""
    if kind(ids) == "integer":
        return b"i" + ids.astype("<i8").tobytes()
    texts = [str(i).encode() for i in ids]
    return b"t" + struct.pack(f"<{len(texts)}I", *map(len, texts)) + b"".join(texts)


def unpack_ids(data: bytes, size: int) -> Ids:
    """Return the `size` ids in `data`; raises `StateError` where it holds something else."""
    body = data[1:]
    if data[:1] == b"i" and len(body) == 8 * size:
        return np.frombuffer(body, "<i8").astype(np.int64)
    if data[:1] == b"t" and len(body) >= 4 * size:
        ends = np.cumsum(np.frombuffer(body[: 4 * size], "<u4").astype(np.int64))
        text = body[4 * size :]
        if size == 0 or ends[-1] == len(text):
            starts = np.concatenate([[0], ends[:-1]])
            return np.array(
                [text[a:b].decode() for a, b in zip(starts, ends, strict=True)], dtype=str
            )
    raise StateError("ledger: a block of ids is damaged; run `apiece ledger verify`")


def pack_enrolled(ids: Ids, terms: Terms) -> bytes:
    """Return the record of newly enrolled people of one block."""
    packed = pack_ids(ids)
    return zlib.compress(struct.pack("<II", ids.size, len(packed)) + packed + terms.tobytes(), 1)


def unpack_enrolled(data: bytes) -> tuple[Ids, Terms]:
    """Invert `pack_enrolled`."""
    raw = zlib.decompress(data)
    size, length = struct.unpack_from("<II", raw)
    ids = unpack_ids(raw[8 : 8 + length], size)
    return ids, np.frombuffer(raw[8 + length :], TERMS, count=size)


def pack_mask(mask: Mask, values: bytes = b"") -> bytes:
    """Return which people of a block are meant, and what is stored of them."""
    head = struct.pack("<I", mask.size) + np.packbits(mask).tobytes()
    return zlib.compress(head + values, 1)


def unpack_mask(data: bytes) -> tuple[Mask, bytes]:
    """Invert `pack_mask`."""
    raw = zlib.decompress(data)
    (size,) = struct.unpack_from("<I", raw)
    stop = 4 + (size + 7) // 8
    if not (size <= BLOCK and stop <= len(raw)):
        raise ValueError(f"a mask of {size} people; a block has at most {BLOCK}")
    mask = np.unpackbits(np.frombuffer(raw[4:stop], np.uint8), count=size).astype(bool)
    return mask, raw[stop:]


def limits(terms: Terms) -> Integers:
    """Return what each account may spend, in units: (people, 2) of μ² and slack."""
    return np.asarray(np.array([terms["limit"], terms["slack"]]).T)


def nothing(people: int) -> Integers:
    """Return what so many people have spent at first, (people, 2): each column in one piece."""
    return np.zeros((2, people), dtype=np.int64).T


def pack_pairs(pairs: Integers) -> bytes:
    """Return (people, 2) units of μ² and slack as bytes; slacks are left out where all are 0."""
    columns = np.ascontiguousarray(pairs.T, dtype="<i8")
    return (columns if columns[1].any() else columns[0]).tobytes()


def unpack_pairs(data: bytes, size: int) -> Integers:
    """Invert `pack_pairs`, for so many people; raises `ValueError` for bytes of another number."""
    if len(data) not in (8 * size, 16 * size):
        raise ValueError(f"{len(data)} bytes of units for {size} people")
    pairs = np.zeros((2, size), dtype=np.int64)
    pairs.reshape(-1)[: len(data) // 8] = np.frombuffer(data, "<i8")
    return np.asarray(pairs.T)


def pack_charges(mask: Mask, pairs: Integers) -> bytes:
    """Return which people of a block were charged, and what: (charged, 2) units."""
    return pack_mask(mask, pack_pairs(pairs))


def unpack_charges(data: bytes) -> tuple[Mask, Integers]:
    """Invert `pack_charges`."""
    mask, rest = unpack_mask(data)
    return mask, unpack_pairs(rest, int(mask.sum()))


def among(places: Integers, some: Integers) -> Mask:
    """Return which places are among some others, which are sorted."""
    if not some.size:
        return np.zeros(places.shape, dtype=bool)
    at = np.searchsorted(some, places)
    return np.asarray(np.append(some, -1)[at] == places)


def places(block: int, mask: Mask) -> Integers:
    """Return the places of those of a block who are meant."""
    return np.asarray(block * BLOCK + np.flatnonzero(mask))


def by_block(ordinals: Integers) -> list[tuple[int, npt.NDArray[np.intp]]]:
    """Return, for each block touched, its number and the positions in `ordinals` that touch it."""
    if not ordinals.size:
        return []
    blocks = ordinals // BLOCK
    if ordinals.size > 1 and not (np.diff(blocks) >= 0).all():
        order = np.argsort(blocks, kind="stable")
    else:
        order = np.arange(ordinals.size)
    numbers, starts = np.unique(blocks[order], return_index=True)
    return [(int(b), part) for b, part in zip(numbers, np.split(order, starts[1:]), strict=True)]


def begin(salt: bytes, *parts: bytes) -> hashlib.blake2b:
    """Begin a keyed hash with parts, each preceded by its length."""
    state = hashlib.blake2b(key=salt, digest_size=DIGEST)
    for part in parts:
        state.update(struct.pack("<Q", len(part)))
        state.update(part)
    return state


def keyed(salt: bytes, *parts: bytes) -> bytes:
    """Return the keyed hash of parts, each preceded by its length."""
    return begin(salt, *parts).digest()


def root(salt: bytes, digests: Iterable[tuple[int, bytes]]) -> bytes:
    """Return one digest for those of many blocks, in the order given."""
    packed = b"".join(struct.pack("<q", block) + digest for block, digest in digests)
    return keyed(salt, packed)


def block_digest(salt: bytes, table: str, block: int, *content: bytes) -> bytes:
    """Return the digest of one row of the people or balances."""
    return keyed(salt, table.encode(), struct.pack("<q", block), *content)


def entry_digest(salt: bytes, previous: bytes, body: str, payload_root: bytes) -> bytes:
    """Return an entry's digest."""
    return keyed(salt, previous, body.encode(), payload_root)


def payload_root(salt: bytes, payloads: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the digest of an entry's packed arrays."""
    return root(salt, ((block, keyed(salt, data)) for block, data in payloads))


UNIT: Final = 2.0**-50  # of μ²
SLACK_UNIT: Final = 2.0**-70
CAP: Final = 2**61  # two of them add up within 64 bits
ULP: Final = 2.0**-52


def account_limits(epsilon: Floats, delta: Floats, share: Floats | float = SHARE) -> Integers:
    """Return accounts (B, S) in units, (people, 2): S a share of δ, B made from the rest."""
    (eps, dlt, part), place = distinct(epsilon, delta, share)
    told = np.minimum(np.floor(dlt * part / SLACK_UNIT), CAP // 2)
    budget = gaussian_budget(eps, dlt, told * SLACK_UNIT)
    units = np.floor(budget * (1 - 4 * ULP) / UNIT)
    good = (units >= 1) & (units < CAP)
    if not good.all():
        i = int(np.flatnonzero(~good[place])[0])
        kind = place[i]
        remedy = "a larger epsilon" if units[kind] < 1 else "a smaller epsilon"
        raise BudgetError(
            f"epsilon[{i}] = {float(eps[kind])!r}, delta = {float(dlt[kind])!r}: its budget, "
            f"{float(budget[kind]):g}, is outside [{UNIT:g}, {CAP * UNIT:g}); give {remedy}"
        )
    return np.asarray(np.array([units, told]).astype(np.int64)[:, place].T)


def terms(ids: Ids, epsilon: Any, delta: Any, slack: Any = None) -> Terms:
    """Return each person's ε, δ and account; raises `BudgetError` for what cannot be a budget."""
    eps = _check.positive_array("epsilon", epsilon, error=BudgetError)
    dlt = _check.positive_array("delta", delta, below=1.0, error=BudgetError)
    share = _check.nonnegative_array("slack", SHARE if slack is None else slack)
    if not (share < 1).all():
        raise BudgetError(f"slack = {slack!r}: must be in [0, 1), a share of delta; try {SHARE}")
    for label, array in (("epsilon", eps), ("delta", dlt), ("slack", share)):
        if array.ndim and array.shape != ids.shape:
            raise BudgetError(f"{label}: {array.size} entries for {ids.size} ids")
    result = np.zeros(ids.size, dtype=TERMS)
    result["epsilon"], result["delta"] = eps, dlt
    result["limit"], result["slack"] = account_limits(eps, dlt, share).T
    return result


def losses(norms: Any, noise_stddev: Any) -> Floats:
    """Return the μ² of a Gaussian sum, s²/S²; not yet rounded."""
    stddev = _check.positive("noise_stddev", noise_stddev)
    given = _check.nonnegative_array("norms", norms)
    with np.errstate(over="ignore", under="ignore"):
        ratio = given / stddev  # 0 for the smallest norms, which are not free for that
        return np.asarray(np.where(given > 0, np.maximum(ratio * ratio, UNIT / 4), 0.0))


def to_units(amount: Floats, unit: float = UNIT) -> Integers:
    """Return amounts in units, rounded up; one past every budget becomes the cap."""
    with np.errstate(over="ignore"):
        units = np.ceil(amount * (1 + 16 * ULP) / unit)
    return np.minimum(units, CAP).astype(np.int64)
