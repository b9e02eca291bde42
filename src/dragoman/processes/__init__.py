"""Child processes: start, watch, and end with everything they started."""
