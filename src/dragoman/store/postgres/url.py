"""The address of a Postgres database: a URL or libpq's `key=value` pairs, and what of it may be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dragoman.errors import ConfigError

SCHEMES = ("postgresql://", "postgres://")
URL_HINT = (
    "write it like postgresql://user:password@host:5432/name?sslmode=verify-full, "
    "with %40 for @, %3A for :, %2F for / and %25 for % in a password"
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
    if not url.startswith(SCHEMES):
        raise ConfigError("the database's URL does not begin with postgresql://", hint=URL_HINT)
    try:
        return {**DEFAULTS, **conninfo_to_dict(url)}
    except psycopg.Error:  # its text may quote the password
        raise ConfigError("the database's URL cannot be read", hint=URL_HINT) from None


def describe_url(params: Mapping[str, Any]) -> str:
    """Return the URL of a database as it may be shown: user, host, port and name."""
    user = f"{quote(str(params['user']))}@" if params.get("user") else ""
    host = str(params.get("host") or params.get("hostaddr") or "")
    if host.startswith("/") or not host:
        host, query = "", f"?host={host}" if host else ""
    else:
        query = ""
    port = f":{params['port']}" if params.get("port") else ""
    return f"postgresql://{user}{host}{port}/{params.get('dbname') or ''}{query}"
