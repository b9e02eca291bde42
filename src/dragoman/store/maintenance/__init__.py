"""Maintenance of databases, hub or no hub: status, copies, backups, compaction."""
