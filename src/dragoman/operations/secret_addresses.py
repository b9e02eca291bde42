"""Addresses in the arguments of a call, to which a secret in the same arguments could be sent.

Which argument of an external operation is an address can only be guessed. The guess errs on the side of
finding one: the call is then refused unless the secret may be sent there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.redaction import MAX_DEPTH

ADDRESS_ARGUMENTS = {"web.fetch": "url", "web.post": "url"}
"""Operations whose only address is this argument."""
FREE_FORM = frozenset({"shell.run"})
"""Operations whose arguments can name any address in any form."""
ADDRESS_WORDS = frozenset(
    {"url", "urls", "uri", "uris", "href", "endpoint", "endpoints", "host", "hosts", "hostname", "domain"}
    | {"server", "proxy", "webhook", "callback"}
)
HOST_WORDS = frozenset({"host", "hostname", "domain", "server"})
"""Fields of a host, whose port may be in another field, `port`."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Parsers of URLs strip control characters and spaces, and treat a backslash as a slash.
IGNORED = dict.fromkeys(range(0x20))
URL_START = re.compile(r" *(?:(?:https?|wss?|ftp):|[a-z][a-z0-9+.-]*:[\\/]{2}|[\\/]{2})", re.IGNORECASE)
EMBEDDED_URL = re.compile(r"[a-z][a-z0-9+.-]*:[\\/]{1,2}\S*", re.IGNORECASE)


def find_addresses(operation: str, input: Any) -> Iterator[str]:
    """Yield the URLs and hosts that the input of an operation names."""
    argument = ADDRESS_ARGUMENTS.get(operation)
    if argument is None:
        yield from iter_addresses(input, MAX_DEPTH)
    elif isinstance(input, Mapping):
        yield str(input.get(argument, ""))


def iter_addresses(value: Any, depth: int, *, field: str = "", port: str = "") -> Iterator[str]:
    """Yield the addresses in a JSON value that has the name `field`, with `port` beside it."""
    if isinstance(value, str):
        yield from text_addresses(value, field=field, port=port)
    elif depth and isinstance(value, Mapping):
        beside = str(value.get("port") or "")
        for name, item in value.items():
            yield from text_addresses(str(name), field="", port="")
            yield from iter_addresses(item, depth - 1, field=str(name), port=beside)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from iter_addresses(item, depth - 1, field=field, port=port)


def text_addresses(text: str, *, field: str, port: str) -> Iterator[str]:
    """Yield the addresses of one text: itself, or the URLs in it if it has a handle of a secret as well."""
    words = {word.lower() for word in WORD.findall(field)}
    if is_url(text):
        yield text
    elif words & ADDRESS_WORDS and text and not text.startswith("/"):
        yield f"{text}:{port}" if port and words & HOST_WORDS and ":" not in text else text
    elif "secret:" in text:
        yield from EMBEDDED_URL.findall(text)


def is_url(text: str) -> bool:
    """Return whether a text begins as a URL does, for any parser."""
    return URL_START.match(text.translate(IGNORED)) is not None
