"""Claude Code as a provider: its CLI answers in a child process."""
