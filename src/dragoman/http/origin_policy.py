"""Origins: which requests may come to `/mcp` at all, so that no web page reaches a hub on this machine.

A page can send requests to 127.0.0.1, also under a name of its own that it points there (DNS rebinding): the
`Origin` and the `Host` tell. Specification: 2026-07-28, basic/transports, "Security Warning".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from dragoman.errors import DragomanError, Forbidden

LOCALHOST = "localhost"
HOSTS_HINT = "name it under mcp.hosts in dragoman.yaml"
ORIGINS_HINT = "name it under mcp.origins in dragoman.yaml"


class MisdirectedRequest(DragomanError):
    """The request is for another host."""

    code = "misdirected"
    status = 421


class OriginPolicy:
    """Checks `Host` and `Origin`.

    `hosts` are further names of this hub, with a port or for any; `origins` further places whose pages may
    come, `*` for all. A hub that is reached over loopback answers to loopback names and to these only; one
    that is reached from elsewhere answers to any name as long as there are no `hosts`.
    """

    def __init__(self, *, hosts: Collection[str] = (), origins: Collection[str] = ()) -> None:
        self._hosts = {host.lower() for host in hosts}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    def check(self, headers: Mapping[str, str], *, local_address: str | None) -> None:
        """Let the request pass. Misdirected, Forbidden. `at` is the address that it came in by."""
        host = headers.get("host", "").lower()
        if not self._is_known_host(host, local_address=local_address):
            raise MisdirectedRequest(f"this hub does not answer to the name {host[:200]!r}", hint=HOSTS_HINT)
        origin = headers.get("origin")
        if origin is not None and not self.allows(origin):
            raise Forbidden(f"pages of {origin[:200]!r} may not come here", hint=ORIGINS_HINT)
        if origin is None and is_cross_site_subresource(headers):
            raise Forbidden("pages of other sites may not come here", hint=ORIGINS_HINT)

    def allows(self, origin: str) -> bool:
        """Whether pages of this origin may come."""
        said = origin.lower().rstrip("/")
        if "*" in self._origins or said in self._origins:
            return True
        place = hostname_of(said)
        return is_loopback(place) or place in self._hosts or said.partition("://")[2] in self._hosts

    def _is_known_host(self, host: str, *, local_address: str | None) -> bool:
        place = hostname_of(f"//{host}")
        if is_loopback(place) or host in self._hosts or place in self._hosts:
            return True
        return not self._hosts and not (local_address is not None and is_loopback(local_address))


def is_cross_site_subresource(headers: Mapping[str, str]) -> bool:
    """Whether a page of another site loads this as a picture, a script or the like, which it does without an
    `Origin`; following a link is no such thing.
    """
    mode = headers.get("sec-fetch-mode", "navigate")
    return headers.get("sec-fetch-site") == "cross-site" and mode != "navigate"


def is_loopback(host: str) -> bool:
    """Whether it is this machine by name or by any of its addresses: all of 127.0.0.0/8, and ::1."""
    if host == LOCALHOST:
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def hostname_of(url: str) -> str:
    """The host of an address, without its port; empty when it is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
