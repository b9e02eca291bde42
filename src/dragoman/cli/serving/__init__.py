"""Serve a hub: `serve`, its workers and servers, and `check`."""
