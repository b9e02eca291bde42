"""The version of the installed package."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the installed package's version; `source` when it runs from a source tree."""
    try:
        return metadata.version("dragoman")
    except metadata.PackageNotFoundError:
        return "source"
