"""Parse URLs into server addresses, and choose the proxy for each.

Sources: RFC 3986, RFC 9110 §4; HTTP_PROXY, HTTPS_PROXY and NO_PROXY, read as curl and Go read them.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec

from dragoman.errors import ConfigError, ProviderError
from dragoman.json_decoding import parse_digits

PORTS = {"http": 80, "https": 443}
FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x20\x7f]")
LONG_AUTHORITY = re.compile(r"[A-Za-z0-9+.-]*+:?//[^/?#]{2000}")
MAX_HOST = 253  # characters
QUERY_SAFE = "/:@!$&'()*+,;=?%-._~[]"


class Address(msgspec.Struct, frozen=True):
    """A server's scheme (`http` or `https`), host (IPv6 without brackets) and port."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def host_literal(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def authority(self) -> str:
        """The value of the `host` header: without the port if it is the scheme's default."""
        return self.host_literal if self.port == PORTS[self.scheme] else f"{self.host_literal}:{self.port}"


@lru_cache(maxsize=256)
def parse_url(url: str) -> tuple[Address, str]:
    """Return the server of a URL and the request target.

    Raises ProviderError `bad_request` for an invalid URL. Messages name the host only: paths and queries may
    contain keys.
    """
    try:
        parts = split_url(url)
    except ValueError as error:
        message = f"the URL of a model provider is not valid: {error}"
        raise ProviderError(message, category="bad_request") from None
    if parts.username is not None:
        message = f"the URL of {parts.hostname!r} contains credentials; send them in a header"
        raise ProviderError(message, category="bad_request")
    query = f"?{quote(parts.query, safe=QUERY_SAFE)}" if parts.query else ""
    return address_of(parts), quote(parts.path or "/", safe=QUERY_SAFE) + query


def split_url(url: str) -> SplitResult:
    """Split an http(s) URL. Raises ValueError with a message that does not contain the URL."""
    if FORBIDDEN_CHARACTERS.search(url):
        raise ValueError("it contains spaces or control characters")
    try:
        # The parser and the encoder of host names take time in proportion to the square of their length.
        if LONG_AUTHORITY.match(url):
            raise ValueError("its host is too long")
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme in PORTS and parts.port != 0 and len(host) <= MAX_HOST and host.encode("idna"):
            return parts
    except ValueError:  # a port that is not a number, a host label that is too long
        pass
    raise ValueError("write it like http://host:port/path or https://host/path")


def address_of(parts: SplitResult) -> Address:
    host = parts.hostname or ""
    if not host.isascii():
        host = host.encode("idna").decode("ascii")
    return Address(parts.scheme, host, parts.port or PORTS[parts.scheme])


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy; `authorization` is the value of its `proxy-authorization` header, if it needs one."""

    address: Address
    authorization: str | None = None

    def __repr__(self) -> str:
        return f"Proxy({self.address!r})"


class Proxies(msgspec.Struct, frozen=True):
    """The proxies for http and https servers, and the NO_PROXY rules for connecting directly."""

    http: Proxy | None = None
    https: Proxy | None = None
    no_proxy: tuple[str, ...] = ()

    def proxy_for(self, address: Address) -> Proxy | None:
        """Return the proxy for a server; None for a direct connection. Loopback is always direct."""
        proxy = self.https if address.tls else self.http
        if proxy is None or is_loopback(address.host):
            return None
        return None if any(matches_no_proxy(rule, address) for rule in self.no_proxy) else proxy


def proxies_from(environ: Mapping[str, str]) -> Proxies:
    """Read HTTP_PROXY, HTTPS_PROXY and NO_PROXY; lower-case names win. Raises ConfigError for a bad URL."""
    rules = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").lower().split(",")
    return Proxies(
        http=proxy_from(environ, "http_proxy"),
        https=proxy_from(environ, "https_proxy"),
        no_proxy=tuple(rule.strip() for rule in rules if rule.strip()),
    )


def proxy_from(environ: Mapping[str, str], name: str) -> Proxy | None:
    """Return the proxy in a variable. Errors omit the value, which may contain a password."""
    url = environ.get(name) or environ.get(name.upper())
    if not url:
        return None
    try:
        parts = split_url(url if "://" in url else f"http://{url}")
    except ValueError as error:
        raise ConfigError(f"{name.upper()} in the environment is not valid: {error}") from None
    if parts.username is None:
        return Proxy(address_of(parts))
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(address_of(parts), f"Basic {base64.b64encode(pair.encode()).decode()}")


def matches_no_proxy(rule: str, address: Address) -> bool:
    """Return whether a NO_PROXY rule matches: `*`, a network, or a domain, which includes its subdomains."""
    if rule == "*":
        return True
    if "/" in rule:
        return in_network(address.host, rule)
    name, _, port = rule.rpartition(":")
    if name and (number := parse_digits(port)) is not None and rule.count(":") == 1:
        return number == address.port and matches_no_proxy(name, address)
    name = rule.strip("[]").lstrip("*").lstrip(".")
    return address.host == name or address.host.endswith(f".{name}")


def in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost`, in 127.0.0.0/8, or ::1."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
