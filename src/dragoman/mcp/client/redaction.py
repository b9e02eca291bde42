"""Redaction of the secrets that a server was given from everything that it sends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dragoman.mcp.server_spec import ServerSpec

REDACTED = "***"
MIN_SECRET_CHARS = 4  # shorter values would redact half of every text
MAX_DEPTH = 100
SECRET_NAME = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)


class Redactor:
    """Replaces secrets in texts; longer ones first, because one may contain another."""

    def __init__(self, *values: str) -> None:
        secrets = sorted({value for value in values if len(value) >= MIN_SECRET_CHARS}, key=len, reverse=True)
        spelled = dict.fromkeys(form for value in secrets for form in (value, json.dumps(value)[1:-1]))
        self._pattern = re.compile("|".join(map(re.escape, spelled))) if spelled else None

    def __call__(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def redact_json(self, value: Any, *, depth: int = MAX_DEPTH) -> Any:
        """Redact all strings of a JSON value, at any depth."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self(value)
        if depth == 0:
            return None if isinstance(value, (dict, list)) else value
        if isinstance(value, dict):
            return {self(name): self.redact_json(item, depth=depth - 1) for name, item in value.items()}
        if isinstance(value, list):
            return [self.redact_json(item, depth=depth - 1) for item in value]
        return value


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
