"""Rules for what can be called and by whom: the policy, MCP servers, folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from dragoman.config.faults import Fault, Path, shorten
from dragoman.config.sections import Config, McpServerConfig

DECISIONS = ("allow", "ask", "deny")
EFFECTS = ("read", "idempotent", "once")
NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RATE = re.compile(r"[1-9]\d*\s*(?:/|per)\s*(?:second|minute|hour|day|s|min|h|d)", re.IGNORECASE)


def broken_operations(config: Config) -> Iterator[Fault]:
    """Everything of it that cannot be, though its types fit."""
    yield from _policy(config)
    for name, server in config.mcp_servers.items():
        yield from _server(name, server)


def _policy(config: Config) -> Iterator[Fault]:
    for at, rule in enumerate(config.policy):
        path: Path = ("policy", at)
        said = [word for word in DECISIONS if getattr(rule, word)]
        if len(said) != 1:
            found = " and ".join(said) or "none"
            yield Fault(path, f"expected one of allow, ask and deny, got {found}")
        for effect in (rule.effect,) if isinstance(rule.effect, str) else rule.effect:
            if effect not in EFFECTS:
                yield Fault((*path, "effect"), f"expected read, idempotent or once, got {shorten(effect)}")
        for field in ("expires", "answerers"):
            if said != ["ask"] and getattr(rule, field):
                yield Fault((*path, field), "is for rules that `ask`")


def _server(name: str, server: McpServerConfig) -> Iterator[Fault]:
    path: Path = ("mcp_servers", name)
    if not NAMESPACE.fullmatch(name) or name.lower() == "hub":
        yield Fault(path, "a server's name is 1 to 64 letters, digits, - or _, and not `hub`")
    if bool(server.command) == bool(server.url):
        yield Fault(path, "takes either a command, such as [npx, -y, some-server], or a url")
    if server.url and not is_address(server.url):
        yield Fault((*path, "url"), "must be an address that begins with http:// or https://")
    if server.rate and not RATE.fullmatch(server.rate.strip()):
        yield Fault((*path, "rate"), "is no rate; one reads like 60/minute")
    for field in ("env", "env_from", "cwd"):
        if server.url and getattr(server, field):
            yield Fault((*path, field), "is for servers with a command")
    if server.command and server.headers:
        yield Fault((*path, "headers"), "is for servers with a url")


def is_address(url: str) -> bool:
    """Whether it is a URL of a web server."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
