"""The version of the package that runs here."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The installed package's version; `source` when it runs from a source tree."""
    try:
        return metadata.version("dragoman")
    except metadata.PackageNotFoundError:
        return "source"
