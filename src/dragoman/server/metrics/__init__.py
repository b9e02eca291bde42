"""Metrics for Prometheus: the series, their sources, and the exposition format."""
