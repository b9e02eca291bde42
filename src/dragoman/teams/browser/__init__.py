"""Browsers of teams: Playwright MCP servers that reach the web through a proxy that decides where to."""
