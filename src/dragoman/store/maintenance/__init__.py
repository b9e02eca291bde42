"""Maintenance of databases, with or without a running hub: status, copies, backups, compaction."""
