"""Memory of teams: what their runs save, search, and are shown at the beginning."""
