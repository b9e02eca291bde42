"""The endpoints of keys and tokens, of budgets and of usage."""
