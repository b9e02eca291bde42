"""Postgres as the hub's database. Its backend is imported only where a configuration names one."""
