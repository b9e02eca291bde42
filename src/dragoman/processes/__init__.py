"""Child processes: process groups, descendants, a watchdog and orphan cleanup."""
