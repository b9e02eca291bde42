"""What a hub has and does: its models, agents, providers, budgets, queue, log, and the process itself."""
