"""HTTP endpoints and authentication."""
