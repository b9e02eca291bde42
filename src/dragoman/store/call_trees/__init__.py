"""Trees of calls: their roots as a list, and their nodes in pages."""
