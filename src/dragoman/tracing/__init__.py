"""OpenTelemetry spans of model calls and operations."""
