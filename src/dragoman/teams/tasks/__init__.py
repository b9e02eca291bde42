"""Tasks of teams: their queue, their runs and their results."""
