"""The client of the runner protocol: answer the prompts of a hub's sessions."""
