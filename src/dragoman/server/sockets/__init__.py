"""The WebSocket of a session: its events for clients, and the requests that they send."""
