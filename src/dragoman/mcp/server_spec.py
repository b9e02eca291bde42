"""The configuration of an MCP server (how to start or reach it, what to use of it) and its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from dragoman.errors import ConfigError
from dragoman.operations.call_limiter import Rate
from dragoman.operations.operation import NAMESPACE_PATTERN, Effect

Trust = Literal["always", "first", "ask"]
State = Literal["starting", "ready", "failed", "quarantined", "lazy", "disabled"]
Transport = Literal["auto", "http", "sse"]

RESERVED_NAME = "hub"


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is started or reached, and what of it becomes operations. Times are in seconds.

    Either `command`, a program and its arguments, or a `url`. A program's environment is PATH, HOME and LANG
    of the hub, the hub's variables that `env_from` names, `env`, and `secrets` by name. With a `url`, the
    `secrets` are headers in addition to `headers`.

    `tools` are patterns of the names of tools to use. `effects` maps names or patterns of tools to effects
    and takes precedence over the server's own annotations, which the policy follows only with
    `trust_effects`. `max_tools` limits the number of tools, `notification_rate` what the server sends
    without a request, `message_limit` the bytes of one message, `stderr_limit` the bytes of its error output
    that are logged each minute.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    env_from: tuple[str, ...] = ()
    secrets: Mapping[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    transport: Transport = "auto"
    headers: Mapping[str, str] = {}
    tools: tuple[str, ...] = ("*",)
    effects: Mapping[str, Effect] = {}
    trust_effects: bool = False
    trust: Trust = "first"
    lazy: bool = False
    enabled: bool = True
    timeout: float = 60.0
    connect_timeout: float = 20.0
    concurrency: int = 8
    rate: str | None = None
    max_tools: int = 10_000
    notification_rate: str = "200/second"
    message_limit: int = 32_000_000
    stderr_limit: int = 64_000

    def __post_init__(self) -> None:
        if not NAMESPACE_PATTERN.fullmatch(self.name) or self.name.lower() == RESERVED_NAME:
            raise ConfigError(
                f"an MCP server cannot be named {self.name[:100]!r}",
                hint=f"1 to 64 letters, digits, - or _; {RESERVED_NAME!r} is the hub's own",
            )
        if bool(self.command) == bool(self.url):
            raise ConfigError(f"MCP server {self.name!r} takes either a command or a url")
        if self.rate is not None:
            Rate.parse(self.rate)
        Rate.parse(self.notification_rate)
        if self.url and not is_http_url(self.url):
            raise ConfigError(
                f"the url of MCP server {self.name!r} must be an address with http:// or https://"
            )

    def __repr__(self) -> str:
        """Without the command, the address, headers and the environment: what they hold may be secret."""
        return f"ServerSpec({self.name!r}, {'command' if self.command else 'url'})"


def is_http_url(url: str) -> bool:
    """Whether it is a URL of a web server."""
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_http and url.isprintable() and " " not in url  # `urlsplit` leaves line breaks and tabs out


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a server. Times are unix seconds.

    `since` is when `state` began, `error` why the server is failed or quarantined. `last_error` is why it
    failed or was lost last, at `last_error_at`, and stays after the server is ready again. `first_error` is
    the first error since it was ready, if that is another one. `problems` are texts about tools that were
    left out and messages that were dropped. `tools` counts its operations, `waiting` its definitions that
    wait for approval.
    """

    name: str
    state: State
    since: float
    error: str | None = None
    last_error: str | None = None
    last_error_at: float | None = None
    first_error: str | None = None
    tools: int = 0
    waiting: int = 0
    problems: tuple[str, ...] = ()
    title: str | None = None
    protocol: str | None = None
    attempts: int = 0
