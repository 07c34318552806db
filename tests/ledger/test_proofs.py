"""Receipts that can be checked: RFC 6962's trees, and no lie in a receipt or a head holds."""

import hashlib
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apiece.cli import run
from apiece.errors import DataError, InputError
from apiece.filters import Costs
from apiece.ledger import Ledger, check_receipt, codec, proofs
from apiece.ledger.proofs import (
    build_levels,
    compute_root,
    hash_leaf,
    prove_consistency,
    prove_inclusion,
    verify_consistency,
    verify_inclusion,
)
from refusals import refused

# The inputs and roots of the reference implementation of RFC 6962 (certificate-transparency).
INPUTS = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657",
          "606162636465666768696a6b6c6d6e6f")  # fmt: skip
ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
LEAVES = [hash_leaf(bytes.fromhex(each)) for each in INPUTS]


def test_the_roots_are_those_of_the_reference() -> None:
    assert [compute_root(LEAVES[:n]).hex() for n in range(9)] == list(ROOTS)


def test_the_example_of_the_rfc() -> None:
    """RFC 6962, 2.1.3: of seven leaves d0 … d6, with the nodes named as there."""
    nodes = build_levels(LEAVES[:7])
    a, b, c, d, e, f, j = LEAVES[:7]
    (g, h, i, _), (k, last), (root,) = nodes[1:]
    assert (h, k) == (proofs.hash_node(c, d), proofs.hash_node(g, h))
    assert prove_inclusion(nodes, 0) == [b, h, last]
    assert prove_inclusion(nodes, 3) == [c, g, last]
    assert prove_inclusion(nodes, 4) == [f, j, k]
    assert prove_inclusion(nodes, 6) == [i, k]
    assert prove_consistency(LEAVES[:7], 3) == [c, d, g, last]
    assert prove_consistency(LEAVES[:7], 4) == [last]
    assert prove_consistency(LEAVES[:7], 6) == [i, j, k]
    assert root == compute_root(LEAVES[:7])
    assert (a, e) == (LEAVES[0], LEAVES[4])


def test_every_proof_of_small_trees_holds_and_no_other() -> None:
    leaves = [hash_leaf(bytes([k])) for k in range(20)]
    roots = [compute_root(leaves[:n]) for n in range(21)]
    for size in range(1, 21):
        tree = build_levels(leaves[:size])
        for at in range(size):
            path = prove_inclusion(tree, at)
            assert verify_inclusion(leaves[at], at, size, path, roots[size])
            for index in range(size + 2):
                assert verify_inclusion(leaves[at], index, size, path, roots[size]) == (index == at)
            assert not verify_inclusion(leaves[at], at, size, path[:-1], roots[size]) or size == 1
            assert not verify_inclusion(
                leaves[at], at, size, [*path, path[0] if path else b""], roots[size]
            )
            assert not verify_inclusion(leaves[at - 1], at, size, path, roots[size]) or size == 1
        for first in range(1, size + 1):
            proof = prove_consistency(leaves[:size], first)
            ends = roots[first], roots[size]
            assert verify_consistency(first, size, *ends, proof)
            assert not verify_consistency(first, size, *ends[::-1], proof) or first == size
            assert not verify_consistency(first, size, roots[0], roots[size], proof)
            for k in range(len(proof)):
                other = [*proof[:k], hashlib.sha256(proof[k]).digest(), *proof[k + 1 :]]
                assert not verify_consistency(first, size, *ends, other)
            assert not verify_consistency(first, size, *ends, [*proof, roots[1]])


PEOPLE = codec.BLOCK + 3


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.make(f"{tmp_path}/p.db", np.arange(PEOPLE), 1.0, 1e-6)
    made.reserve_everyone("all", 1.0, 20.0)
    made.commit("all", 41)
    made.reserve("some", [3, 4, PEOPLE - 1], [1.0, 0.5, 0.25], 20.0)
    made.reserve_costs("trained", [3, 9], Costs.fixed([1e-3, 1e-3], 1e-8))
    return made


def test_receipts_of_all_kinds_of_people_hold(ledger: Ledger) -> None:
    first = ledger.publish()
    for person, charges in ((3, 3), (4, 2), (5, 1), (PEOPLE - 1, 2)):
        found = json.loads(json.dumps(ledger.prove(person, first)))
        assert len(found["charges"]) == charges
        assert check_receipt(found, first) == []
    ledger.enroll([PEOPLE], 1.0, 1e-6)
    ledger.withdraw([4])
    ledger.reserve("later", [3, 4, PEOPLE], 1.0, 20.0)
    second = ledger.publish(since=first)
    third = ledger.publish(since=second)
    old = ledger.prove(3, first)  # the account as it was then
    assert len(old["charges"]) == 3
    assert check_receipt(old, first) == check_receipt(old, second) == []
    assert "neither" in check_receipt(old, third)[0]
    new = ledger.prove(3, second)
    assert len(new["charges"]) == 4
    assert check_receipt(new, second) == check_receipt(new, third) == []
    assert check_receipt(new, first) != []
    assert json.loads(ledger.prove(4, second)["account"]["text"])[6] == 1
    with pytest.raises(DataError, match="no account then"):
        ledger.prove(PEOPLE, first)
    sizes = (-1, 0, first["size"] - 1, first["size"] + 1, 10**30)
    for odd in ({}, {**first, "root": "00" * 32}, *({**first, "size": size} for size in sizes)):
        with refused(InputError, "head"):
            ledger.prove(3, odd)
    with refused(InputError, "since"):
        ledger.publish(since={**first, "root": "00" * 32})


def test_a_head_from_before_anybody_had_an_account(tmp_path: Path) -> None:
    ledger = Ledger.open(f"{tmp_path}/p.db")
    head = ledger.publish()
    ledger.enroll([1], 1.0, 1e-6)
    with pytest.raises(DataError, match="no account then"):
        ledger.prove(1, head)
    later = ledger.publish(since=head)
    assert check_receipt(ledger.prove(1, later), later) == []


def test_an_account_of_periods_is_proved_by_period(tmp_path: Path) -> None:
    ledger = Ledger.make(f"{tmp_path}/p.db", [1, 2], 1.0, 1e-6)
    ledger.set_policy('version = 1\nunit = "person-period"\nevery = "year"\n')
    ledger.reserve("a", [1, 2], 1.0, 20.0, scope={"period": ["2020", "2021"]})
    ledger.reserve("b", [1], 1.0, 20.0, scope={"period": "2021"})
    head = ledger.publish()
    assert check_receipt(ledger.prove(1, head), head) == []
    assert check_receipt(ledger.prove(2, head), head) == []


def lies(value: Any) -> Iterator[Any]:
    """Yield a JSON value with one thing in it changed, taken away or doubled."""
    match value:
        case dict():
            for key, part in value.items():
                for other in lies(part):
                    yield {**value, key: other}
                yield {k: v for k, v in value.items() if k != key}
        case list():
            for at, part in enumerate(value):
                for other in lies(part):
                    yield [*value[:at], other, *value[at + 1 :]]
                yield value[:at] + value[at + 1 :]
                yield [*value[: at + 1], part, *value[at + 1 :]]
        case str():
            for at in (0, len(value) // 2, len(value) - 1):
                if value:
                    yield value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
            yield ""
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, -value - 1)
    yield None


def believed(receipt: Any, *heads: Any) -> list[tuple[Any, Any]]:
    true = [(receipt, head) for head in heads]
    pairs = [pair for pair in twists(receipt, *heads) if pair not in true]
    assert len(pairs) > 100
    return [pair for pair in pairs if not check_receipt(*pair)]


def twists(receipt: Any, first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    yield from ((lie, first) for lie in lies(receipt))
    yield from ((lie, second) for lie in lies(receipt))
    for part in ("since", "root"):  # the rest of a head that was published is what is believed
        yield from ((receipt, {**second, part: lie}) for lie in lies(second[part]))
    yield from ((receipt, lie) for lie in lies(first))


def test_no_lie_in_a_receipt_or_a_head_holds(ledger: Ledger) -> None:
    first = ledger.publish()
    ledger.reserve("later", [3], 1.0, 20.0)
    second = ledger.publish(since=first)
    receipt = ledger.prove(3, first)
    assert check_receipt(receipt, second) == []
    assert believed(receipt, first, second) == []


BREAKS = {"verify_inclusion": True, "verify_consistency": True}


@pytest.mark.parametrize("name", BREAKS)
def test_the_lies_are_believed_by_a_check_that_is_broken(
    name: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ledger.publish()
    ledger.reserve("later", [3], 1.0, 20.0)
    second, receipt = ledger.publish(since=first), ledger.prove(3, first)
    monkeypatch.setattr(proofs, name, lambda *_: True)
    assert believed(receipt, first, second)


def test_a_steward_who_hides_a_charge_is_caught(ledger: Ledger) -> None:
    head = ledger.publish()
    receipt = deepcopy(ledger.prove(3, head))
    hidden = receipt["charges"].pop(1)
    assert check_receipt(receipt, head) == ["charges: do not add up to the account"]
    moved = receipt["charges"][0]
    moved["units"] = [a + b for a, b in zip(moved["units"], hidden["units"], strict=True)]
    assert check_receipt(receipt, head) == []  # the sum is bound, and so is each entry's name


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{tmp_path}/p.db"
    ledger = Ledger.make(url, ["ann", "bob"], 1.0, 1e-6)
    ledger.reserve("q", ["ann"], 1.0, 20.0)

    def said(name: str, *words: str) -> str:
        assert run(["ledger", *words]) == 0
        (tmp_path / name).write_text(capsys.readouterr().out)
        return str(tmp_path / name)

    first = said("1.json", "head", url)
    receipt = said("r.json", "receipt", url, "ann", "--head", first)
    ledger.reserve("r", ["bob"], 1.0, 20.0)
    second = said("2.json", "head", url, "--since", first)
    assert run(["ledger", "check", receipt, first]) == 0
    assert run(["ledger", "check", receipt, second, "--json"]) == 0
    capsys.readouterr()
    (tmp_path / "r.json").write_text(Path(receipt).read_text().replace("ann", "eve"))
    assert run(["ledger", "check", receipt, first]) == 1
    assert "PROBLEM account: not in the head" in capsys.readouterr().out
    (tmp_path / "r.json").write_text("[]")
    assert run(["ledger", "check", receipt, first]) == 2
    assert run(["ledger", "receipt", url, "ann", "--head", receipt]) == 2
