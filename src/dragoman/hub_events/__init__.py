"""Events of sessions and hosts: their log, and its followers."""
