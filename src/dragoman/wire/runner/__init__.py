"""Runners: frames of processes that run their own agent, and their turns as events."""
