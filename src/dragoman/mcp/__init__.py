"""Model Context Protocol: the hub as a server, and other servers as operations."""
