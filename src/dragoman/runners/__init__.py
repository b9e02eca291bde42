"""Runners: processes that answer sessions with agents of their own, over a WebSocket. Both ends of it."""
