"""Definitions of operations: from Python functions and from a builder, and the diff of two definitions."""
