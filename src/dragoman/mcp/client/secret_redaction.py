"""The secrets in the configuration of an MCP server, which are redacted in everything that it sends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, urlsplit

from dragoman.mcp.server_spec import ServerSpec
from dragoman.redaction import Redactor

SECRET_NAME = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)


def redactor_for(spec: ServerSpec, environ: Mapping[str, str]) -> Redactor:
    """Return the redactor for a server's secrets, headers, and variables whose names sound secret."""
    return Redactor(*secrets_of(spec, environ))


def secrets_of(spec: ServerSpec, environ: Mapping[str, str]) -> Iterator[str]:
    variables = {**spec.env, **{name: environ[name] for name in spec.env_from if name in environ}}
    yield from spec.secrets.values()
    yield from (value for name, value in variables.items() if SECRET_NAME.search(name))
    address = urlsplit(spec.url or "")
    yield from (value for _, value in parse_qsl(address.query))
    yield address.password or ""
    for value in (*spec.headers.values(), *spec.secrets.values()):
        scheme, _, token = value.partition(" ")
        yield from (value, token) if token and scheme.isalpha() else (value,)
