"""The version of the installed package."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Return the installed package's version; `source` when it runs from a source tree."""
    try:
        return metadata.version("dragoman")
    except metadata.PackageNotFoundError:
        return "source"
