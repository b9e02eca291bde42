"""The version of the installed package."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    """Return the installed package's version; `source` when it runs from a source tree."""
    from importlib import metadata  # late: few commands need the version, and it imports a parser of mails

    try:
        return metadata.version("dragoman")
    except metadata.PackageNotFoundError:
        return "source"
