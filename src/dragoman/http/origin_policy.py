"""Check `Host` and `Origin` of requests, so that web pages cannot reach a hub on this machine.

A page can send requests to 127.0.0.1, also by a host name of its own that resolves to it (DNS rebinding); the
`Origin` and `Host` headers reveal that. Specification: MCP 2026-07-28, basic/transports, "Security Warning".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dragoman.errors import DragomanError, Forbidden
from dragoman.http.host_origin import Authority, parse_authority, parse_origin
from dragoman.http.url_and_proxy import is_loopback

HOSTS_HINT = "add it to mcp.hosts in dragoman.yaml"
ORIGINS_HINT = "add it to mcp.origins in dragoman.yaml"


class MisdirectedRequest(DragomanError):
    """The request's `Host` is not one of this hub's names (421)."""

    code = "misdirected"
    status = 421


class OriginPolicy:
    """Checks the `Host` and `Origin` headers.

    `hosts` are names of this hub, with or without a port; `origins` are allowed origins, `*` for all; both in
    addition to loopback names. Requests over loopback must use a loopback name or one of `hosts`; requests
    over other interfaces may use any name unless `hosts` are configured.
    """

    def __init__(self, *, hosts: Collection[str] = (), origins: Collection[str] = ()) -> None:
        self._hosts = {host for text in hosts if (host := parse_authority(text)) is not None}
        self._origins = {origin for text in origins if (origin := parse_origin(text.rstrip("/"))) is not None}
        self._allows_all = "*" in origins

    def check(self, headers: Mapping[str, str], *, local_address: str | None) -> None:
        """Raise MisdirectedRequest or Forbidden unless the request is allowed.

        `local_address` is the address of this machine that the client connected to.
        """
        self.check_host(headers, local_address=local_address)
        origin = headers.get("origin")
        if origin is not None and not self.allows(origin):
            raise Forbidden(f"the origin {origin[:200]!r} is not allowed", hint=ORIGINS_HINT)
        if origin is None and is_cross_site_subresource(headers):
            raise Forbidden("requests from other sites are not allowed", hint=ORIGINS_HINT)

    def check_host(self, headers: Mapping[str, str], *, local_address: str | None) -> None:
        """Raise MisdirectedRequest unless `Host` is valid, and one of this hub's names."""
        text = headers.get("host", "")
        host = parse_authority(text)
        if host is None and text:
            raise MisdirectedRequest(
                f"the host {text[:200]!r} is not valid", hint="send one host name, with a port if needed"
            )
        if not self._is_known_host(host, local_address=local_address):
            raise MisdirectedRequest(
                f"the host name {text[:200]!r} is not one of this hub's names", hint=HOSTS_HINT
            )

    def allows(self, origin: str) -> bool:
        """Return whether pages of this origin may send requests."""
        if self._allows_all:
            return True
        page = parse_origin(origin)
        if page is None:
            return False
        return page in self._origins or is_loopback(page.host) or self._names(page.host, page.port)

    def _names(self, host: str, port: int | None) -> bool:
        """Return whether `hosts` names this host, with this port or without one."""
        return Authority(host) in self._hosts or Authority(host, port) in self._hosts

    def _is_known_host(self, host: Authority | None, *, local_address: str | None) -> bool:
        if host is not None and (is_loopback(host.host) or self._names(host.host, host.port)):
            return True
        return not self._hosts and not (local_address is not None and is_loopback(local_address))


def is_cross_site_subresource(headers: Mapping[str, str]) -> bool:
    """Return whether a page of another site loads this as an image, a script or another subresource.

    Browsers send no `Origin` for these, but `Sec-Fetch-Site`. Following a link (`navigate`) is allowed.
    """
    mode = headers.get("sec-fetch-mode", "navigate")
    return headers.get("sec-fetch-site") == "cross-site" and mode != "navigate"
