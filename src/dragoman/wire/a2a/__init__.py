"""The A2A protocol, version 1.0: agent cards, requests, tasks and their event streams."""
