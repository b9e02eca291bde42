"""URLs: an http(s) address read strictly, one way, so that what is checked is what is asked.

Sources: RFC 3986, RFC 5891. Whatever readers of URLs disagree about is refused, not guessed: credentials,
backslashes, white space, percent signs in a host, numbers that are short for an IP address.
"""

from __future__ import annotations

import re
import unicodedata
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import TypeAlias
from urllib.parse import quote, urljoin

import msgspec

from dragoman.errors import BadRequest

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
URL_HINT = "a URL reads like https://example.com/path?query"


class Url(msgspec.Struct, frozen=True):
    """Where to ask and for what: `host` without brackets, `address` when it is an IP address."""

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
        """What the `host` header says: the port only when it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(text: str) -> Url:
    """The URL that a text is. BadRequest says why it is none that is asked."""
    check_characters(text)
    parts = URL_PATTERN.fullmatch(text)
    if parts is None:
        raise BadRequest(f"{text[:100]!r} is no http or https URL", field="url", hint=URL_HINT)
    scheme, authority, target = parts[1].lower(), parts[2], parts[3]
    if "@" in authority:
        raise BadRequest("a URL with a user name or password is not asked", field="url", hint=URL_HINT)
    found = BRACKETED_HOST.fullmatch(authority) or PLAIN_HOST.fullmatch(authority)
    if found is None or int(found[2] or 1) > 65_535:
        raise host_error(authority, "it is no host, or a host and a port")
    address = parse_address(found[1], bracketed=authority.startswith("["))
    host = str(address) if address else parse_hostname(found[1])
    path = target if target.startswith("/") else f"/{target}"
    return Url(
        scheme, host, int(found[2] or DEFAULT_PORTS[scheme]), quote(path, safe=SAFE_CHARACTERS), address
    )


def resolve_redirect(url: Url, location: str) -> Url:
    """Where a redirect leads from a URL, read just as strictly."""
    check_characters(location)
    try:
        there = urljoin(str(url), location)
    except ValueError:
        raise BadRequest(f"{location[:100]!r} is no URL", field="url") from None
    return parse_url(there)


def check_characters(text: str) -> None:
    """BadRequest for what some readers strip, split at or take for a slash."""
    if len(text) > MAX_LENGTH:
        raise BadRequest(f"a URL has at most {MAX_LENGTH} characters, got {len(text)}", field="url")
    bad = next((each for each in text if each in " \\" or not each.isprintable()), None)
    if bad is not None:
        raise BadRequest(
            f"the URL holds {bad!r}: spaces, control characters and backslashes are not allowed",
            field="url",
            hint=f"percent-encode it as {quote(bad, errors='replace')}, or leave it out",
        )


def parse_address(host: str, *, bracketed: bool) -> IpAddress | None:
    """The IP address that a host is, None for a name."""
    try:
        if bracketed:
            return IPv6Address(host)
        return IPv4Address(host) if DOTTED_QUAD.fullmatch(host) else None
    except AddressValueError:
        raise host_error(host, "it is no IP address") from None


def parse_hostname(host: str) -> str:
    """A DNS name in the form that is looked up. BadRequest when it is none, or short for an IP address."""
    name = ".".join(encode_label(label, host=host) for label in host.lower().split("."))
    labels = name.split(".")
    if len(name) > 253 or not all(LABEL.fullmatch(label) for label in labels):
        raise host_error(host, "it is no name of a host")
    if not TOP_LABEL.fullmatch(labels[-1]):
        raise host_error(host, "numbers are only taken as a whole IP address, like 192.0.2.1")
    return name


def encode_label(label: str, *, host: str) -> str:
    """A part of a name in ASCII: letters of other scripts as `xn--`, those that stand for others refused."""
    if label.isascii():
        return label
    plain = all(unicodedata.category(each)[0] in "LM" or each in "-0123456789" for each in label)
    if not plain or unicodedata.normalize("NFKC", label) != label:
        raise host_error(host, "it has characters that stand for others")
    return f"xn--{label.encode('punycode').decode('ascii')}"


def host_error(host: str, reason: str) -> BadRequest:
    return BadRequest(f"the host {host[:100]!r} cannot be asked: {reason}", field="url", hint=URL_HINT)
