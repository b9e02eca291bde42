"""Results of calls: artifacts, files, and plain text."""
