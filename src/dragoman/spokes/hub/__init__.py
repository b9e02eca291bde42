"""The hub's end of the spoke protocol."""
