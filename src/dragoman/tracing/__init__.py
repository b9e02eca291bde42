"""Tracing: OpenTelemetry spans of requests, model calls, runs and operations."""
