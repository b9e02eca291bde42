"""Other people's MCP servers as operations."""
