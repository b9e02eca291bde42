"""The web console: its pages, and how browsers sign in."""
