"""Shell commands in a sandbox, within limits, ended together with all processes that they started."""
