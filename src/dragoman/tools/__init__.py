"""Built-in operations."""
