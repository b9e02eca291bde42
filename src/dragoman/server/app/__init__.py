"""Wires one hub: the only package that imports every other. Two hubs can run in one process."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.server.app.hub import Hub as Hub
    from dragoman.server.app.hub import build_app as build_app
else:  # at run time late: a command that reads a data folder uses other modules of the package
    from dragoman.lazy_imports import lazy_names

    __getattr__ = lazy_names(__name__, {"Hub": "hub", "build_app": "hub"})

__all__ = ["Hub", "build_app"]
