"""Wires one hub: the only package that imports every other. Two hubs can run in one process."""

from dragoman.server.app.hub import Hub, build_app

__all__ = ["Hub", "build_app"]
