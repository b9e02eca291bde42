"""Strict parsing of http(s) URLs, so that the URL that is checked is the URL that is fetched.

Sources: RFC 3986, RFC 5891. Whatever URL parsers read differently is refused: credentials, backslashes,
whitespace, percent signs in a host, numbers that abbreviate an IP address.
"""

from __future__ import annotations

import re
import unicodedata
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import TypeAlias
from urllib.parse import quote, urljoin

import msgspec

from dragoman.errors import BadRequest
from dragoman.http.url_and_proxy import MAX_HOST
from dragoman.unicode_normalisation import normalise_text

IpAddress: TypeAlias = IPv4Address | IPv6Address

MAX_LENGTH = 8_192  # characters of a URL
DEFAULT_PORTS = {"http": 80, "https": 443}
URL_PATTERN = re.compile(r"(https?)://([^/?#]+)([^#]*)(?:#.*)?", re.IGNORECASE | re.ASCII)
BRACKETED_HOST = re.compile(r"\[([0-9a-f:.]+)\](?::([1-9][0-9]{0,4}))?", re.IGNORECASE | re.ASCII)
PLAIN_HOST = re.compile(r"([^:\[\]]+)(?::([1-9][0-9]{0,4}))?")
DOTTED_QUAD = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
TOP_LABEL = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
SAFE_CHARACTERS = "/:@!$&'()*+,;=?%-._~[]"
URL_HINT = "write it like https://example.com/path?query"


class Url(msgspec.Struct, frozen=True):
    """A parsed URL: `host` without brackets, `address` if it is an IP address."""

    scheme: str
    host: str
    port: int
    target: str
    address: IpAddress | None = None

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """The value of the `host` header: with the port unless it is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(text: str) -> Url:
    """Parse a URL. Raises BadRequest."""
    check_characters(text)
    parts = URL_PATTERN.fullmatch(text)
    if parts is None:
        raise BadRequest(f"{text[:100]!r} is not an http or https URL.", field="url", hint=URL_HINT)
    scheme, authority, target = parts[1].lower(), parts[2], parts[3]
    if "@" in authority:
        raise BadRequest("A URL with a user name or password is not allowed.", field="url", hint=URL_HINT)
    host_and_port = BRACKETED_HOST.fullmatch(authority) or PLAIN_HOST.fullmatch(authority)
    if host_and_port is None or int(host_and_port[2] or 1) > 65_535:
        raise host_error(authority, "it is not a host, or a host and a port")
    address = parse_address(host_and_port[1], bracketed=authority.startswith("["))
    host = str(address) if address else parse_hostname(host_and_port[1])
    path = target if target.startswith("/") else f"/{target}"
    return Url(
        scheme,
        host,
        int(host_and_port[2] or DEFAULT_PORTS[scheme]),
        quote(path, safe=SAFE_CHARACTERS),
        address,
    )


def resolve_redirect(url: Url, location: str) -> Url:
    """Return the URL that a redirect leads to, parsed as strictly."""
    check_characters(location)
    try:
        target = urljoin(str(url), location)
    except ValueError:
        raise BadRequest(f"{location[:100]!r} is not a URL.", field="url") from None
    return parse_url(target)


def check_characters(text: str) -> None:
    """Raise BadRequest for characters that some parsers strip, split at or treat as a slash."""
    if len(text) > MAX_LENGTH:
        raise BadRequest(f"The URL has {len(text)} characters; the limit is {MAX_LENGTH}.", field="url")
    invalid = next(
        (character for character in text if character in " \\" or not character.isprintable()), None
    )
    if invalid is not None:
        raise BadRequest(
            f"The URL contains {invalid!r}: spaces, control characters and backslashes are not allowed.",
            field="url",
            hint=f"Percent-encode it as {quote(invalid, errors='replace')}, or leave it out.",
        )


def parse_address(host: str, *, bracketed: bool) -> IpAddress | None:
    """Return the IP address that a host is; None for a name."""
    try:
        if bracketed:
            return IPv6Address(host)
        return IPv4Address(host) if DOTTED_QUAD.fullmatch(host) else None
    except AddressValueError:
        raise host_error(host, "it is not an IP address") from None


def parse_hostname(host: str) -> str:
    """Return a DNS name in ASCII, as it is looked up.

    Raises BadRequest if it is invalid or abbreviates an IP address.
    """
    if len(host) > MAX_HOST:  # encoding a label takes time in proportion to the square of its length
        raise host_error(host, "it is too long")
    name = ".".join(encode_label(label, host=host) for label in host.lower().split("."))
    labels = name.split(".")
    if len(name) > MAX_HOST or not all(LABEL.fullmatch(label) for label in labels):
        raise host_error(host, "it is not a host name")
    if not TOP_LABEL.fullmatch(labels[-1]):
        raise host_error(host, "numbers are accepted only as a complete IP address, like 192.0.2.1")
    return name


def encode_label(label: str, *, host: str) -> str:
    """Return a label in ASCII: other scripts as `xn--`; characters that NFKC replaces are refused."""
    if label.isascii():
        return label
    is_plain = all(
        unicodedata.category(character)[0] in "LM" or character in "-0123456789" for character in label
    )
    if not is_plain or normalise_text("NFKC", label) != label:
        raise host_error(host, "it has characters that are read as others")
    return f"xn--{label.encode('punycode').decode('ascii')}"


def host_error(host: str, reason: str) -> BadRequest:
    return BadRequest(f"The host {host[:100]!r} is not valid: {reason}.", field="url", hint=URL_HINT)
