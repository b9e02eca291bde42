"""Keys, tokens and sign-ins, budgets, and what was used: rows and reports."""
