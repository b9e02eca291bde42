"""Hooks that are ready to use."""
