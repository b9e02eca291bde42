"""The host policy: which hosts, ports and addresses web.fetch may connect to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from typing import TypeAlias

import msgspec

from dragoman.errors import CallError, ConfigError, Forbidden
from dragoman.http.dialer import AddrInfo
from dragoman.tools.web.ip_ranges import IpAddress, in_networks, parse_networks, special_purpose
from dragoman.tools.web.url import Url

HostResolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_ADDRESSES = 64  # addresses of one name
LOCAL_DOMAINS = (
    "localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home", "lan", "svc",
    "home.arpa", "in-addr.arpa", "ip6.arpa", "onion", "alt", "test", "invalid",
)  # fmt: skip
ALLOW_HINT = "the hub's operator can allow it with web.{} in dragoman.yaml"


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `web.fetch` may connect to, and its limits.

    Hosts are exact names, `*.example.com` for all subdomains, or `*`. `allow_networks` are allowed even if
    they are not public. `max_bytes` limits a decompressed response; `timeout` is in seconds, including
    redirects. `rates` has rates such as `60/minute` by their keys (`rate_key`).
    """

    allow_hosts: tuple[str, ...] = ()
    deny_hosts: tuple[str, ...] = ()
    allow_networks: tuple[str, ...] = ()
    ports: tuple[int, ...] = (80, 443)
    max_bytes: int = 5_000_000
    timeout: float = 30.0
    rates: Mapping[str, str] = {}


class HostPolicy:
    """Resolves the host of a URL once and checks every address."""

    def __init__(self, settings: WebSettings, resolve: HostResolver | None = None) -> None:
        if not settings.ports:
            raise ConfigError("web.ports is empty.", hint="The ports of the web are 80 and 443.")
        self._allowed = tuple(pattern.lower() for pattern in settings.allow_hosts)
        self._denied = tuple(pattern.lower() for pattern in settings.deny_hosts)
        self._networks = parse_networks(settings.allow_networks)
        self._ports = settings.ports
        self._resolve = resolve or resolve_host

    async def resolve_allowed(self, url: Url) -> list[AddrInfo]:
        """Return the addresses to connect to.

        Raises Forbidden unless all of them are allowed; CallError if there are none.
        """
        self.check_host(url)
        addresses = [url.address] if url.address else await self._resolve_addresses(url)
        for address in addresses:
            self.check_address(url, address)
        return [socket_address(address, url.port) for address in dict.fromkeys(addresses)]

    def check_address(self, url: Url, address: IpAddress) -> None:
        """Raise Forbidden if an address of the URL's host is not allowed."""
        special = special_purpose(address)
        if special is not None and not in_networks(address, self._networks):
            raise Forbidden(
                f"{url.host!r} is not on the public internet (its address is {special}), "
                "so it is not allowed.",
                hint=f"Use a public address, or {ALLOW_HINT.format('allow_networks')}.",
            )

    def check_host(self, url: Url) -> None:
        """Raise Forbidden if the URL's port or host name is not allowed."""
        if url.port not in self._ports:
            ports = ", ".join(map(str, self._ports))
            raise Forbidden(
                f"Port {url.port} of {url.host!r} is not allowed; allowed are ports {ports}.",
                hint=f"Or {ALLOW_HINT.format('ports')}.",
            )
        is_named = url.host in self._allowed
        if any(matches_host(pattern, url.host) for pattern in self._denied):
            raise Forbidden(f"{url.host!r} is denied by web.deny_hosts.")
        if self._allowed and not any(matches_host(pattern, url.host) for pattern in self._allowed):
            raise Forbidden(
                f"{url.host!r} is not one of the allowed hosts.",
                hint=f"They are {', '.join(self._allowed[:20])}.",
            )
        if url.address is None and not is_named and is_local_name(url.host):
            raise Forbidden(
                f"{url.host!r} is a local network name, so it is not allowed.",
                hint=f"Use a public name, or {ALLOW_HINT.format('allow_hosts')}.",
            )

    async def _resolve_addresses(self, url: Url) -> list[IpAddress]:
        try:
            texts = await self._resolve(url.host, url.port)
            addresses = [ip_address(text) for text in texts]
        except socket.gaierror as error:
            raise unresolved_error(url.host, transient=error.errno == socket.EAI_AGAIN) from None
        except (OSError, ValueError):
            raise unresolved_error(url.host, transient=False) from None
        if not 0 < len(addresses) <= MAX_ADDRESSES:
            raise unresolved_error(url.host, transient=False)
        return addresses


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses that the system resolves a name to."""
    entries = await asyncio.to_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


def unresolved_error(host: str, *, transient: bool) -> CallError:
    error = CallError(f"The host {host!r} could not be resolved.", hint="Check its spelling.")
    error.transient = transient
    return error


def socket_address(address: IpAddress, port: int) -> AddrInfo:
    """Return an address in the form of `getaddrinfo`, so that connecting resolves nothing."""
    if isinstance(address, IPv6Address):
        return (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(address), port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(address), port))


def matches_host(pattern: str, host: str) -> bool:
    """Return whether a pattern matches the host."""
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return pattern in ("*", host)


def is_local_name(host: str) -> bool:
    """Return whether a name has a meaning only in a local network."""
    return "." not in host or any(host.endswith(f".{name}") for name in LOCAL_DOMAINS)
