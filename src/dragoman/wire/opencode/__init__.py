"""OpenCode's stream of JSON lines."""
