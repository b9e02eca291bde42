"""Plugins: operations that an agent of a team writes, run in a sandbox after a person has approved them."""
