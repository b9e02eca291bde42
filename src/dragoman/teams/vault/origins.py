"""The origins that a secret may be sent to: scheme, host and port, compared exactly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dragoman.errors import BadRequest
from dragoman.tools.web.url import parse_url

ANYWHERE = "*"
"""In place of an origin: the secret may be sent to any address."""
MAX_ORIGINS = 20
MAX_ORIGIN_LENGTH = 300
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
WEB_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
"""The schemes whose ports have a default, and the one with the same default."""
PORT = re.compile(r":[0-9]+\Z")
ORIGIN_HINT = "write it like https://api.example.com or https://api.example.com:8443"


def check_origins(texts: Iterable[str]) -> tuple[str, ...]:
    """Return origins in one spelling. A host without a scheme is one of https. Raises BadRequest."""
    found = tuple(dict.fromkeys(check_origin(text) for text in texts))
    if len(found) > MAX_ORIGINS:
        raise BadRequest(f"a secret has at most {MAX_ORIGINS} origins", field="origins")
    return found


def check_origin(text: str) -> str:
    if text == ANYWHERE:
        return text
    whole = text if "://" in text else f"https://{text}"
    try:
        found = parse_origin(whole)
    except BadRequest as error:
        raise BadRequest(f"{text[:100]!r} is not an origin", hint=error.hint, field="origins") from None
    if re.search("[/?#]", whole.partition("://")[2].rstrip("/")):
        raise BadRequest(
            f"{text[:100]!r} has a path, and a secret is for whole origins", hint=ORIGIN_HINT, field="origins"
        )
    return found


def parse_origin(address: str) -> str:
    """Return the origin of a URL, without the port that its scheme has by default. Raises BadRequest."""
    scheme, _, rest = address.partition("://")
    scheme = scheme.lower()
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if not SCHEME.fullmatch(scheme) or not authority:
        raise BadRequest(f"{address[:100]!r} is not a URL with a host", hint=ORIGIN_HINT)
    if scheme in WEB_SCHEMES:
        return f"{scheme}://{parse_url(f'{WEB_SCHEMES[scheme]}://{authority}/').authority}"
    authority = authority.rpartition("@")[2]  # as in postgresql://user:password@host
    host = parse_url(f"https://{PORT.sub('', authority)}/").authority
    port = PORT.search(authority)
    return f"{scheme}://{host}{port[0] if port else ''}"


def is_permitted(origins: Sequence[str], address: str) -> bool:
    """Return whether a secret with these origins may be sent to a URL, or to a host with or without port."""
    if ANYWHERE in origins:
        return True
    try:
        if "://" in address:
            return parse_origin(address) in origins
        schemes = {origin.partition("://")[0] for origin in origins}
        return any(parse_origin(f"{scheme}://{address}") in origins for scheme in schemes)
    except BadRequest:  # what parsers could disagree about is sent nowhere
        return False
