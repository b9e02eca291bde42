"""Requests to the other hosts that share the database: who they are, and a client for them."""
