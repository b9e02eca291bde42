"""The hub's end of a spoke's connection."""
