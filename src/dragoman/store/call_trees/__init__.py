"""Trees of calls: their roots in a list, and their nodes in pages."""
