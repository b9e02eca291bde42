"""The hub's end of the runner protocol."""
