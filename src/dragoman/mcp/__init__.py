"""MCP: the hub as a server for MCP clients, and other people's servers as operations."""
