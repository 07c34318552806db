"""The durable account of every person's spending."""

# Imports stand behind the check that what they need is installed.
# ruff: noqa: E402

from typing import TYPE_CHECKING

from apiece._lazy import names_of, require

require("ledger", "sqlalchemy", "pandas", "pyarrow")

from apiece.ledger.chain import Head
from apiece.ledger.consenting import enroll_consents
from apiece.ledger.copies import back_up_ledger, restore_ledger
from apiece.ledger.ledger import Ledger, LedgerFilter
from apiece.ledger.proofs import check_receipt
from apiece.ledger.reports import receipt, standing
from apiece.ledger.scopes import Policy

if TYPE_CHECKING:
    from apiece.ledger.plans import (
        account_shares,
        plan_costs,
        reserve_alike,
        training_costs,
    )

__all__ = [
    "Ledger", "LedgerFilter", "Policy", "enroll_consents", "plan_costs", "training_costs",
    "account_shares", "reserve_alike", "standing", "receipt", "check_receipt",
    "Head", "back_up_ledger", "restore_ledger",
]  # fmt: skip
# Loaded when first asked for: questions need no plan.
__getattr__ = names_of(
    __name__,
    {
        "plans": (
            "account_shares",
            "plan_costs",
            "reserve_alike",
            "training_costs",
        )
    },
)
