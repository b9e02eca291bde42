"""Endpoints for the other hosts that share the database, on a listener of their own."""
