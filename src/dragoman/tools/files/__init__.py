"""File operations within configured folders."""
