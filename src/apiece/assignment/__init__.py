"""From budgets to plans: one file a strategy."""
