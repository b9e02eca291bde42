"""Numbers for Prometheus: the series, where they come from, and their text."""
