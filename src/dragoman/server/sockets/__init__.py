"""The WebSocket of a session: what happens in it, and what its people send."""
