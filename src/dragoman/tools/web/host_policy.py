"""The guard of the web: which hosts, ports and addresses may be asked, decided before any is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import TypeAlias

import msgspec

from dragoman.errors import CallError, ConfigError, Forbidden
from dragoman.http.dialer import AddrInfo
from dragoman.tools.web.ip_ranges import IpAddress, in_networks, parse_networks, special_purpose
from dragoman.tools.web.url import Url

HostResolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_ADDRESSES = 64  # that one name may have
LOCAL_DOMAINS = (
    "localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home", "lan", "svc",
    "home.arpa", "in-addr.arpa", "ip6.arpa", "onion", "alt", "test", "invalid",
)  # fmt: skip
ALLOW_HINT = "whoever runs the hub may allow it: web.{} in dragoman.yaml"


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `web.fetch` may ask, and how much it takes.

    Hosts are exact names, `*.example.com` for all below one, or `*`. `allow_networks` are asked although they
    are not public. `max_bytes` is of an answer, unpacked; `timeout` is in seconds, redirects included.
    """

    allow_hosts: tuple[str, ...] = ()
    deny_hosts: tuple[str, ...] = ()
    allow_networks: tuple[str, ...] = ()
    ports: tuple[int, ...] = (80, 443)
    max_bytes: int = 5_000_000
    timeout: float = 30.0


class HostPolicy:
    """Says where a URL may be asked: at addresses of which each was looked up once, and checked."""

    def __init__(self, settings: WebSettings, resolve: HostResolver | None = None) -> None:
        if not settings.ports:
            raise ConfigError("web.ports names no port", hint="80 and 443 are those of the web")
        self._allowed = tuple(pattern.lower() for pattern in settings.allow_hosts)
        self._denied = tuple(pattern.lower() for pattern in settings.deny_hosts)
        self._networks = parse_networks(settings.allow_networks)
        self._ports = settings.ports
        self._resolve = resolve or resolve_host

    async def resolve_allowed(self, url: Url) -> list[AddrInfo]:
        """The places to connect to. Forbidden unless every one of them may be asked; CallError for none."""
        self.check_host(url)
        addresses = [url.address] if url.address else await self._resolve_addresses(url)
        for address in addresses:
            special = special_purpose(address)
            if special is not None and not in_networks(address, self._networks):
                raise Forbidden(
                    f"{url.host!r} is not on the public internet (an address that is {special}), "
                    "so it is not asked",
                    hint=f"ask a public address, or {ALLOW_HINT.format('allow_networks')}",
                )
        return [socket_address(address, url.port) for address in dict.fromkeys(addresses)]

    def check_host(self, url: Url) -> None:
        """Forbidden when the URL's port or name is enough to say so."""
        if url.port not in self._ports:
            ports = ", ".join(map(str, self._ports))
            raise Forbidden(
                f"port {url.port} is not asked, only {ports}", hint=f"or {ALLOW_HINT.format('ports')}"
            )
        named = url.host in self._allowed
        if any(matches_host(pattern, url.host) for pattern in self._denied):
            raise Forbidden(f"{url.host!r} must not be asked (web.deny_hosts)")
        if self._allowed and not any(matches_host(pattern, url.host) for pattern in self._allowed):
            raise Forbidden(
                f"{url.host!r} is not among the hosts that may be asked",
                hint=f"they are {', '.join(self._allowed[:20])}",
            )
        if url.address is None and not named and is_local_name(url.host):
            raise Forbidden(
                f"{url.host!r} is a name of a local network, so it is not asked",
                hint=f"ask a public name, or {ALLOW_HINT.format('allow_hosts')}",
            )

    async def _resolve_addresses(self, url: Url) -> list[IpAddress]:
        try:
            found = await self._resolve(url.host, url.port)
            addresses = [ip_address(each) for each in found]
        except socket.gaierror as error:
            raise unresolved_error(url.host, transient=error.errno == socket.EAI_AGAIN) from None
        except (OSError, ValueError):
            raise unresolved_error(url.host, transient=False) from None
        if not 0 < len(addresses) <= MAX_ADDRESSES:
            raise unresolved_error(url.host, transient=False)
        return addresses


async def resolve_host(host: str, port: int) -> list[str]:
    """The addresses that the system knows for a name."""
    found = await asyncio.to_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def unresolved_error(host: str, *, transient: bool) -> CallError:
    error = CallError(f"no address was found for the host {host!r}", hint="see whether it is spelled right")
    error.transient = transient
    return error


def socket_address(address: IpAddress, port: int) -> AddrInfo:
    """An address as sockets take it; nothing is left to look up."""
    if isinstance(address, IPv6Address):
        return (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(address), port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(address), port))


def matches_host(pattern: str, host: str) -> bool:
    """Whether a pattern names the host."""
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return pattern in ("*", host)


def is_local_name(host: str) -> bool:
    """Whether a name means something in a local network only."""
    return "." not in host or any(host.endswith(f".{name}") for name in LOCAL_DOMAINS)
