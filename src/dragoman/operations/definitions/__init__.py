"""Definitions of operations: from Python functions, from a builder, and what differs between two."""
