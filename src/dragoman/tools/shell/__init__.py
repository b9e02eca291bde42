"""Shell commands: in a sandbox of their own, within limits, and ended with all that they started."""
