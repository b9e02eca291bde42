"""Paths of the hub's API."""

from __future__ import annotations

from urllib.parse import quote


def path_segment(id: str) -> str:
    """Quote an id as one segment of a path."""
    return quote(id, safe="")
