"""Runs that runners answer: begun at the host of the runner, and their turns that wait for an answer."""
