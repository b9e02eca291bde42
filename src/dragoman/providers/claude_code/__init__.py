"""Claude Code as a provider: its CLI answers in a process of its own."""
