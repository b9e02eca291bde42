"""Strict parsing of `Host` and `Origin`: one result for each valid spelling, none for an invalid one.

Browsers send these headers in one form. Whatever else a lenient parser accepts (user information, tabs,
percent-encoding, zones, a trailing dot) may be an attempt to pass for another host, so it is invalid here.
Sources: RFC 9110 section 7.2, RFC 6454 section 7, RFC 3986 section 3.2.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address

import msgspec

MAX_NAME_LENGTH = 253
MAX_PORT = 65_535
DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
AUTHORITY = re.compile(
    r"""(?: \[ (?P<ipv6> [0-9a-f:.]{2,45} ) \]
          | (?P<name> LABEL (?: \. LABEL )* ) )
        (?: : (?P<port> [0-9]{1,5} ) )?""".replace("LABEL", "[a-z0-9_] (?: [a-z0-9_-]* [a-z0-9_] )?"),
    re.VERBOSE | re.ASCII,
)
ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>.+)", re.ASCII)


class Authority(msgspec.Struct, frozen=True):
    """A host in lower case (an IPv6 address without brackets, in its shortest form), and a port if given."""

    host: str
    port: int | None = None


class Origin(msgspec.Struct, frozen=True):
    """The origin of a page. `port` is that of the scheme where none is given."""

    scheme: str
    host: str
    port: int | None


def parse_authority(text: str) -> Authority | None:
    """Parse a `Host` header; None when it is not valid, or has several hosts."""
    found = AUTHORITY.fullmatch(text.lower()) if text.isascii() else None
    if found is None:
        return None
    host, port = found["name"] or "", None if found["port"] is None else int(found["port"])
    if found["ipv6"] is not None:
        try:
            host = str(IPv6Address(found["ipv6"]))
        except ValueError:
            return None
    if len(host) > MAX_NAME_LENGTH or (port is not None and not 1 <= port <= MAX_PORT):
        return None
    return Authority(host, port)


def parse_origin(text: str) -> Origin | None:
    """Parse an `Origin` header; None when it is not valid, and for `null`."""
    found = ORIGIN.fullmatch(text.lower()) if text.isascii() else None
    authority = None if found is None else parse_authority(found["authority"])
    if found is None or authority is None:
        return None
    scheme = found["scheme"]
    return Origin(scheme, authority.host, authority.port or DEFAULT_PORTS.get(scheme))
