"""Events of sessions and hosts: the log of them, and those who follow it."""
