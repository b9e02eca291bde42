"""Prices, limits and budgets, and what was spent."""
