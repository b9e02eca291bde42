"""The wiring of one hub: the only place that knows every room. Two hubs can live in one process."""

from dragoman.server.app.hub import Hub, build_app

__all__ = ["Hub", "build_app"]
