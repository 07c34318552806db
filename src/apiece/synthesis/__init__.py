"""Synthetic tables from people with their own budgets."""
