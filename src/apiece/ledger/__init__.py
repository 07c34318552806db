"""The durable account of every person's spending."""

from apiece.ledger.chain import Entry, Head
from apiece.ledger.ledger import Ledger
from apiece.ledger.people import LedgerFilter
from apiece.ledger.plans import plan_losses, reserve_plan
from apiece.ledger.verify import Verification

__all__ = ["Entry", "Head", "Ledger", "LedgerFilter", "Verification", "plan_losses", "reserve_plan"]
