"""The operations registry as an MCP server."""
