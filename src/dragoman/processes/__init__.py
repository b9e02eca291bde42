"""Child processes: start, watch, end with all that they started."""
