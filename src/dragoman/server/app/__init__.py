"""Wire one hub: the only package that knows every other. Two hubs can live in one process."""

from dragoman.server.app.hub import Hub, build_app

__all__ = ["Hub", "build_app"]
