"""The URL of a Postgres database: its parameters, and the parts that may be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from dragoman.errors import ConfigError

UNREADABLE = "postgresql://…"
HOST = re.compile(r"(\[[\da-fA-F:.%]+\]|[\w.%~-]*)(:\d*)?")
SCHEMES = ("postgresql://", "postgres://")
URL_HINT = (
    "write it like postgresql://user:password@host:5432/name?sslmode=verify-full, "
    "with %40 for @, %3A for :, %2F for /, %3F for ? and %25 for % in a password"
)

# What libpq gets unless the URL says something else. A connection whose server is gone is noticed in seconds.
DEFAULTS: Mapping[str, Any] = {
    "application_name": "dragoman",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "client_encoding": "utf8",
}


def parse_url(url: str) -> dict[str, Any]:
    """Return the parameters of libpq in a URL. Raises ConfigError, which does not show the URL."""
    import psycopg  # late: an extra
    from psycopg.conninfo import conninfo_to_dict  # late: as above

    if not url.startswith(SCHEMES):
        raise ConfigError("the database's URL does not begin with postgresql://", hint=URL_HINT)
    try:
        params = conninfo_to_dict(url)
    except psycopg.Error:  # its text may quote the password
        params = None
    if params is None or is_misread(url, params):
        raise ConfigError("the database's URL cannot be read", hint=URL_HINT)
    return {**DEFAULTS, **params}


def is_misread(url: str, params: Mapping[str, Any]) -> bool:
    """Return whether libpq reads a part of a password as something else, because of an unquoted character.

    Errors of a connection would quote that part, for example as the name of a host.
    """
    rest = url.partition("://")[2].partition("?")[0]
    path = rest.partition("/")[2]
    return "@" in path or "@" in str(params.get("host", "")) or "?" in str(params.get("user", ""))


def shown_url(url: str) -> str:
    """Return the URL of a database as it may be shown: its user, hosts, ports and name.

    Of one that can be read in two ways, such as one with an unquoted password, only the scheme.
    """
    try:
        parts = urlsplit(url)
        user, hosts = parts.username or "", parts.netloc.rpartition("@")[2]
    except ValueError:  # such as an address without its bracket
        return UNREADABLE
    if "@" in unquote(parts.path) or parts.fragment or not all(map(HOST.fullmatch, hosts.split(","))):
        return UNREADABLE
    query = dict(parse_qsl(parts.query))
    user, name = user or quote(query.get("user", "")), parts.path or f"/{quote(query.get('dbname', ''))}"
    place = unquote(hosts) or query.get("host") or query.get("hostaddr") or ""
    if not hosts and "port" in query:
        name = f":{query['port']}{name}"
    if place.startswith("/"):
        place, name = "", f"{name}?host={place}"
    return f"postgresql://{f'{user}@' if user else ''}{place}{name}"


def url_secrets(url: str) -> set[str]:
    """Return the parts of a database's URL that must not be shown: passwords, as written and unquoted."""
    text, query = url.partition("?")[::2]
    written = [text.partition("://")[2].rpartition("@")[0].partition(":")[2]]
    pairs = [pair.partition("=") for pair in query.split("&")]
    written += [value for name, _, value in pairs if "password" in name]
    return {form for value in written for form in (value, unquote(value)) if form}
