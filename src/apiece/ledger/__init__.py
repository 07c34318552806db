"""The durable account of every person's spending."""

from apiece.ledger.address import check_address, database_files
from apiece.ledger.anchor import read_head
from apiece.ledger.chain import Entry, Head
from apiece.ledger.codec import read_id
from apiece.ledger.ledger import Ledger
from apiece.ledger.migrating import migrate_ledger
from apiece.ledger.people import LedgerFilter
from apiece.ledger.plans import (
    account_shares,
    plan_costs,
    reserve_alike,
    reserve_plan,
    training_costs,
    training_terms,
)
from apiece.ledger.receipts import Charge, Receipt, receipt
from apiece.ledger.standing import SHARES, binned, cumulated, standing
from apiece.ledger.verify import Verification

__all__ = [
    "SHARES",
    "Charge",
    "Entry",
    "Head",
    "Ledger",
    "LedgerFilter",
    "Receipt",
    "Verification",
    "account_shares",
    "binned",
    "check_address",
    "cumulated",
    "database_files",
    "migrate_ledger",
    "plan_costs",
    "read_head",
    "read_id",
    "receipt",
    "reserve_alike",
    "reserve_plan",
    "standing",
    "training_costs",
    "training_terms",
]
