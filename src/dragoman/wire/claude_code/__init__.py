"""Claude Code's stream of JSON lines."""
