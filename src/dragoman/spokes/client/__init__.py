"""The client of the spoke protocol: register operations, serve calls."""
