"""A2A agents: cards, tasks over JSON-RPC and REST, and their push notifications."""
