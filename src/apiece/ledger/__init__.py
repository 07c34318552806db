"""The durable account of every person's spending."""

from apiece.ledger.address import check_address, database_files
from apiece.ledger.anchor import read_head
from apiece.ledger.chain import Entry, Head
from apiece.ledger.codec import read_id
from apiece.ledger.ledger import Ledger
from apiece.ledger.people import LedgerFilter
from apiece.ledger.plans import (
    account_epsilon,
    least_epsilon,
    plan_losses,
    reserve_plan,
    suggest_order,
    training_terms,
)
from apiece.ledger.receipts import Charge, Receipt, receipt
from apiece.ledger.verify import Verification

__all__ = [
    "Charge",
    "Entry",
    "Head",
    "Ledger",
    "LedgerFilter",
    "Receipt",
    "Verification",
    "account_epsilon",
    "check_address",
    "database_files",
    "least_epsilon",
    "plan_losses",
    "read_head",
    "read_id",
    "receipt",
    "reserve_plan",
    "suggest_order",
    "training_terms",
]
