"""Fetch web pages, guarded against addresses that must not be reached."""
