"""Who may call which operation."""
