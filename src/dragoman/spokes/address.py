"""The address of a hub's door for spokes."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

from dragoman.errors import ConfigError
from dragoman.spokes.protocol import PATH

SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def door_of(hub: str) -> str:
    """The WebSocket URL of a hub: `http://host:8000` has `ws://host:8000/api/spoke`. ConfigError for none."""
    try:
        parts = urlsplit(hub.strip())
        usable = bool(parts.hostname) and parts.scheme in SCHEMES
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable:
        raise ConfigError(f"{hub!r} is no address of a hub", hint="one reads like http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix(PATH) + PATH
    return urlunsplit((SCHEMES[parts.scheme], parts.netloc, path, "", ""))


def is_near(url: str) -> bool:
    """Whether it is on this machine, so that no proxy leads there."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
