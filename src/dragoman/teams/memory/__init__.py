"""Memory of teams: what their runs save, find again, and are told at the beginning."""
